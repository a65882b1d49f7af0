"""Why a policy fired, why it did not, and what would have made it fire. [PO-11]"""
