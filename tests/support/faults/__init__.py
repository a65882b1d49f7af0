"""Disks, networks, clocks and crowds that misbehave as told."""
