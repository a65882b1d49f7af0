"""The source's experiments, each a pure function of a point. [EN-12]"""
