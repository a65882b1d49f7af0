"""Nodes on real networks: the machines of the simulator on sockets, clocks and threads."""
