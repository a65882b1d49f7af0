"""Subscriptions that a node pushes to an address."""
