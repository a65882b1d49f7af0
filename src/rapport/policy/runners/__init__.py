"""Executing plans on events."""
