"""Servers that the adapters are tried against."""

from __future__ import annotations
