"""Warnings about policies that do not mean what they say. [PO-12]"""
