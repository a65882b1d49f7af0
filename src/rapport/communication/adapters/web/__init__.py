"""Webhooks, the inbox, open pages."""
