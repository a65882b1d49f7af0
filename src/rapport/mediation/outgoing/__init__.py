"""From root to consumers, in their own terms. [ME-9]"""
