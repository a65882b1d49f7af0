"""From the log to the lake. [CH-16]"""
