"""Access control of a node: identities, rights, rates, signatures. [CH-15, CH-18]"""
