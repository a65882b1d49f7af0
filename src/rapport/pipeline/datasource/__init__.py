"""Channels as Spark reads and writes them. [PI-2]"""
