"""The agent: the process beside each JVM that decides and remembers (design, section 3)."""
