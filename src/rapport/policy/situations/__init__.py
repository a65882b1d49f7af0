"""Operators of situations: columnar and incremental, with explicit state. [SI-1 to SI-9]"""
