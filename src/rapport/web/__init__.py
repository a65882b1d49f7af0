"""HTTP API and pages of a node."""
