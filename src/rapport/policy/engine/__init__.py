"""Policies live in a node: readings taken, states kept, detections told. [PO-8]"""
