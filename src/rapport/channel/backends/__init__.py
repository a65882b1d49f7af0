"""Where a channel keeps its events."""
