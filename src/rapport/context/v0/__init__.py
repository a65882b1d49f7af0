"""Protocol v0 of the source, Appendix A, for foreign clients and brokers; off by default. [CX-2]"""
