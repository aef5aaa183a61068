"""The lab of Spark CEC: benchmarks, simulations and the papers' figures. A checkout has it; the wheel leaves it out."""
