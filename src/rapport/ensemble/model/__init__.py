"""Roles, components, processes, ensembles, and the host that runs them. [EN-1, EN-2]"""
