"""A running node: all packages wired together."""
