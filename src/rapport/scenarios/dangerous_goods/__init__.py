"""Dangerous goods: substances too near each other, trackers that disagree. [PO-17]"""
