"""The benchmarks users can run."""
