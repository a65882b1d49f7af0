"""What is true now: `rapport context`."""
