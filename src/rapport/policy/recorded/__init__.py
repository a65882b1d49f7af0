"""Readings in files: CSV, JSON lines and Parquet, in the order in which they arrived. [PO-2]"""
