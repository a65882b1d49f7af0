"""Interpretations as DataFrame expressions. [ME-14, PI-4]"""
