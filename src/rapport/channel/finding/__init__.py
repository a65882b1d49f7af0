"""Finding events in a channel: by index, by time, by reading. [CH-4]"""
