"""Proposes an interpretation from a sample of a source's data."""
