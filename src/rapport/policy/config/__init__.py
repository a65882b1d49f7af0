"""Declarations of the ontology and the sources in a site file. [PO-1, PO-2]"""
