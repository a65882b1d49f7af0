"""Components that form groups by what they know, and tell each other by gossip. [EN-1]"""
