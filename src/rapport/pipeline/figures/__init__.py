"""Figures from the log, computed on Spark. [PI-6]"""
