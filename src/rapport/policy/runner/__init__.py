"""Runs compiled plans on readings: event-time order, groups of plans, snapshots."""
