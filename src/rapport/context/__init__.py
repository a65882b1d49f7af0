"""Context: what is true now about entities, from a network of brokers. [CX-1]"""
