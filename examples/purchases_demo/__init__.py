"""The parts of `examples/purchases.py`: events, the two queries, the supervisor that kills them, and the comparison."""
