"""Saying what to watch for, and watching."""
