"""One running process."""
