"""Passwords, sessions, seals."""
