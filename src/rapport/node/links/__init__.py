"""Links to other nodes, at work."""
