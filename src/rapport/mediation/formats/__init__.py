"""Payload formats: from the bytes of an event to plain values, and back."""
