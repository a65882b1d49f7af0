"""The 25 rules of the communication model as checks over a recorded trace. [EN-3]"""
