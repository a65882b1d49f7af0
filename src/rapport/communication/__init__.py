"""Reaching people and machines."""
