"""Routing rules, message queries, message information."""
