"""Carrying datagrams: over memory, UDP and simulated networks."""
