"""The secure building: guests in restricted rooms, readers and cameras that disagree. [PO-17]"""
