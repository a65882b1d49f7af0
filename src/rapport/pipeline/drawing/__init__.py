"""Plots and pages that need nothing else to be read, printed or heard. [PI-6, PI-9]"""
