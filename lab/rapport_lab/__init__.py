"""Simulators, experiments and studies of Rapport. The product never imports this package."""
