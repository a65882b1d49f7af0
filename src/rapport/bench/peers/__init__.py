"""Other logs, forced to disk as ours is, measured with Python clients in the same run."""
