"""Explanations: why a policy fired, and why it did not. [PO-11]"""
