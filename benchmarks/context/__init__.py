"""How fast brokers answer, beside what was published. [CX-1]"""
