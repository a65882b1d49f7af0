"""Repetitions told by number. [CH-6]"""
