"""The work of the commands on the log of a query: find, read, verify, repair, flush, roll back. Nothing here prints."""
