"""Executing once what several policies have in common."""
