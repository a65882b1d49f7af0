"""Conformance suites that every back end passes."""
