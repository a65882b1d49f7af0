"""The policies of a running node: events in, detections out. [PO-8]"""
