"""Apprise and its services."""
