"""Checkpointing protocols for queries joined by channels, as state machines without I/O.

Source: Siachamis et al., "CheckMate: Evaluating Checkpointing Protocols for Streaming Dataflows" (ICDE 2024), which
compares the first three with no checkpoints at all; the last is this project's own (Sebepou and Magoutis, DSN 2011).

- `coordinated`: markers, alignment, rounds (Chandy and Lamport, as in Flink)
- `uncoordinated`: each process by its own clock; rollback propagation finds the line
- `communication_induced`: as `uncoordinated`, and messages force checkpoints: HMNR, and BCS beside it
- `none`: a failure takes all processes back to the beginning
- `eventual`: every batch is durable, so only the process that failed goes back, to its own last batch

The words are the literature's: a *process* is a flow, or one instance of it. A *message* is a batch in its channel. A
runtime (a pipeline on Spark, a simulator, a test) gives a machine its events, and carries out the actions that the
machine answers.
"""
