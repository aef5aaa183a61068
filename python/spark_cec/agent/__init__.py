"""The agent: the process beside each JVM that makes the decisions and keeps the ledgers (docs/design.md, The parts)."""
