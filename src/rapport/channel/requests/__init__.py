"""The source side of a channel: requests, sessions, takes and leases. [CH-1, CH-2, CH-3]"""
