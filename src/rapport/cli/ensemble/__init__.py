"""Components that form groups and gossip: `rapport ensemble`."""
