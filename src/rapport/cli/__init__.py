"""Doors at the terminal: one file per command."""
