"""Guessing: an interpretation to edit, proposed from a sample of what a source says."""
