"""Bridges to MQTT brokers, at work."""
