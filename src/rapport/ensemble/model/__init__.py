"""Roles, components, processes, ensembles, and the host that works on them. [EN-1, EN-2]"""
