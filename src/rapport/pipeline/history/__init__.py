"""Policies over history: how it is cut, read and decided on Spark. [PI-5]"""
