"""Readers of declared interpretations: TOML, YAML and XML files, tables, Python classes."""
