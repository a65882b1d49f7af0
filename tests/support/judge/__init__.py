"""Judges: the meaning written a second time, slowly and literally. [PO-7, ME-8]"""
