"""How fast policies are, and how that grows. [PO-7, PO-13]"""
