"""What giving one meaning costs, beside other ways of doing it. [ME-8, ME-9]"""
