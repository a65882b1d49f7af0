"""History on Spark: `rapport pipeline`."""
