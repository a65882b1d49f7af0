"""The state machine of a broker. [CX-5]"""
