"""The parts of `pipeline_purchases.py`: a pipeline over purchases, its driver, and who kills it."""
