"""Ensembles in the laboratory: simulated worlds, experiments, rules over traces."""
