"""Formats: from the bytes of an event to the plain values that it says."""
