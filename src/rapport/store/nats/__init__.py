"""Logs in NATS JetStream: several processes may write one log. [CH-13]"""
