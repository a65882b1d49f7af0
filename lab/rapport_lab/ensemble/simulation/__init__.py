"""Ensembles on simulated time: streets, movement, radio, IP network, and a world of nodes."""
