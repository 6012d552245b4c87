"""Pipeline of training runs: `start` loads the reference, `run` trains a recipe, and `evaluate` measures the run."""
