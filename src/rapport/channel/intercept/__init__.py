"""Plug-ins of a channel: what happens around append and around delivery, changed while running."""
