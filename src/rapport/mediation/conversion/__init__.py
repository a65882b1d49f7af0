"""Kinds of conversion: their declarations, what they compute, and their checks."""
