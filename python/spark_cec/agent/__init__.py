"""The agent: the process beside each JVM that decides and remembers (docs/design.md, The parts)."""
