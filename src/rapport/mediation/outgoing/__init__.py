"""Outgoing mediation: canonical events in the interpretation of each consumer."""
