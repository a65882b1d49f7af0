"""Policies tried on history. [PI-9]"""
