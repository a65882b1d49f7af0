"""Query languages of requests: SQL-like conditions, templates, scripts; compiled once. [CH-4]"""
