"""Implements the commands on a query's log: find, read, verify, repair, flush, roll back. Prints nothing."""
