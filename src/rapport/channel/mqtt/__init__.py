"""MQTT in and out of channels: what is declared, and how messages become events."""
