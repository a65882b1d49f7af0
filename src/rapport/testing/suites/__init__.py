"""Suites of output and input adapters."""
