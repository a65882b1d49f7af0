"""MQTT out and in."""
