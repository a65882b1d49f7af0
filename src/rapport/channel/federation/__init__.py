"""Channels of several nodes, linked in any graph."""
