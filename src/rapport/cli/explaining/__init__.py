"""What led to something, and why something did not happen."""
