"""An input that is away, on a clock that is not real: the product's decisions, with batches that take some time."""
