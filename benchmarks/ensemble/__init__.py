"""How fast gossip is, simulated and on sockets. [EN-5]"""
