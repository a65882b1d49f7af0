"""Logs and records in PostgreSQL: several processes may write one log. [CH-13]"""
