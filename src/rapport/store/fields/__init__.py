"""The field index: at which positions of a log a field has a value. [CH-4]"""
