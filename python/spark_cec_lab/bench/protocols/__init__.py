"""CheckMate's experiments on pipelines that run on Spark, and simulated beyond what a machine has.

- `spec`: one run, what it is given and what it says
- `job`: a process that runs pipelines, one after the other, in one session
- `feed`: input in files that say which events are theirs, as fast as they are done or by the clock
- `watch`: what a run's messages and checkpoints have been
- `tables`: the paper's figures and tables, theirs beside ours
"""
