"""Knowing the present state of things, without a centre."""
