"""Checkpointing protocols for queries joined by channels, as state machines without I/O.

Source: Siachamis et al., "CheckMate: Evaluating Checkpointing Protocols for Streaming Dataflows" (ICDE 2024), which
compares the first three with no checkpoints at all; the last is this project's own (Sebepou and Magoutis, DSN 2011).

- `coordinated`: markers, alignment, rounds (Chandy and Lamport, as in Flink)
- `uncoordinated`: each process by its own clock; rollback propagation finds the line
- `communication_induced`: the same, and checkpoints that messages force: HMNR, and BCS beside it
- `none`: a failure takes everybody back to the beginning
- `eventual`: every batch is durable, so that nobody goes back but who failed, and that one to its own last batch

Words are the literature's: a *process* is a flow, or one instance of it; a *message* is a batch in its channel. Whoever
drives a machine (a pipeline on Spark, a simulator, a test) tells it what happens and does what it answers.
"""
