"""Real servers for tests, on free ports of the loopback."""
