"""How long a channel keeps its events. [CH-14]"""
