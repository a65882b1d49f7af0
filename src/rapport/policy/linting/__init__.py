"""What is right by the rules yet probably not meant: hints and warnings on policies. [PO-12]"""
