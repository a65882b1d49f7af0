"""Interpretations changed while the node runs. [ME-6, ME-12]"""
