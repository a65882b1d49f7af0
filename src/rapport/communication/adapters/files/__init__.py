"""Folders: local and FTP."""
