"""The protocol of the source's Appendix A, for foreign clients and brokers; off unless a site turns
it on. [CX-2]
"""
