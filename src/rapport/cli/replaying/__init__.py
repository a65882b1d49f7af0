"""Policies over recorded events: `rapport replay`."""
