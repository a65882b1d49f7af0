"""A plain map of things that move, without outside tiles. [EN-13]"""
