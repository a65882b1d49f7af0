"""Doors at the terminal: a room per subject, in it a file per command."""
