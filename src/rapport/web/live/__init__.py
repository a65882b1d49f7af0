"""Doors that push: Server-Sent Events and WebSocket."""
