"""Rapport: people, devices and services that understand each other.

The rooms of the product are described in ARCHITECTURE.md; `rapport.core` holds the words they share.
"""

__version__ = "0.1.0"
