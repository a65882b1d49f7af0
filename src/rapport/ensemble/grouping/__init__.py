"""Groups: nodes that talk only to those whose knowledge concerns them. [EN-7]"""
