"""Policies registered, replaced, paused, shadowed and deleted while events flow. [PO-9]"""
