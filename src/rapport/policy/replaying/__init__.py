"""Policies over what was: files, the log of a node, a second look after a release. [PO-7, PO-8]"""
