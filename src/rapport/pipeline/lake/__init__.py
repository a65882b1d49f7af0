"""The lake: its files, tables and their care. [PI-3]"""
