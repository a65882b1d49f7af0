"""Interpretations of a node: model, registry, versions, and changes at run time."""
