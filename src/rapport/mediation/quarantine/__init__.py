"""Quarantined events: index, release and reprocessing."""
