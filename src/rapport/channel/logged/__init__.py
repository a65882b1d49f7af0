"""Channels on a log store: group commit, duplicates, decoded blocks. [CH-6, CH-13]"""
