"""How fast the channel is, embedded and at its doors. [CH-12, CH-13]"""
