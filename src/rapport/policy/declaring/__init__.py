"""The ontology's tables of a site file, one reader each. [PO-1]"""
