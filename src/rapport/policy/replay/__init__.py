"""Policies over history: recorded files, the log of a node, re-evaluation. [PO-7, PO-8]"""
