"""Ontologies of other tools: RDF and OWL in, the part that fits out. [PO-1]"""
