"""Requests for messages: sets named by tokens, sessions, taking. [CH-1, CH-2, CH-3]"""
