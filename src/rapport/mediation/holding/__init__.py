"""What is held back, and how it is released. [ME-11, ME-16]"""
