"""What the tests of the stores share: a JVM that holds stores, operators to run on them, and histories."""
