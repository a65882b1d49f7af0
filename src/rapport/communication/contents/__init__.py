"""Whether the content of a message fits the JSON Schema that its type was given. [CO-14]"""
