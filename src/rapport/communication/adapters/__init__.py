"""One file per medium."""
