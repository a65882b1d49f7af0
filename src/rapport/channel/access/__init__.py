"""Who may do what at a node, how fast, and whose signature an event bears. [CH-15, CH-18]"""
