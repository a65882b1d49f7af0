"""Nodes on real networks: the state machines on sockets, clocks and threads."""
