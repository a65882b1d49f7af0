"""Input adapters at work: push, pull, requests."""
