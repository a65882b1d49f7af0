"""Programs' own ends of a channel: they keep what the network cannot take now."""
