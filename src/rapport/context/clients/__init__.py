"""Programs that talk to a broker: providers, consumers, controllers. [CX-3, CX-11]"""
