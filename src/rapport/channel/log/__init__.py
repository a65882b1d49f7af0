"""Channels on a log store: group commit, deduplication, block cache, indexes. [CH-6, CH-13]"""
