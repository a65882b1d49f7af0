"""One file per door."""
