"""MQTT bridges: configuration, mapping between messages and events, the client. [CH-12]"""
