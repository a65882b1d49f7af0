"""Declaring typed interpretations: files in TOML, YAML and XML, Python, or units alone. [ME-10]"""
