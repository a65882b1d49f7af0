"""Logs as segment files on disk, one writing process. [CH-13]"""
