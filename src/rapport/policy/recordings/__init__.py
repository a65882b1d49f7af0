"""Recorded events in files: CSV, JSON lines and Parquet, in order of arrival. [PO-2]"""
