"""Rapport: people, devices and services that understand each other.

ARCHITECTURE.md describes the rooms of the product; `rapport.core` holds the words they share.
"""

__version__ = "0.1.0"
