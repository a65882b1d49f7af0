"""Policies written in the terms of whoever reads them. [ME-9]"""
