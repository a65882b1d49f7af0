"""Mediation turns events between the canonical model and the interpretations of both sides."""
