"""The secure building: guests in restricted rooms, badge readers and cameras that disagree. [PO-17]"""
