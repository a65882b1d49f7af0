"""Networks of brokers on simulated time, and the studies made with them. [CX-7, CX-12]"""
