"""What one node says, hears, passes on and asks for: pure machines. [EN-5, EN-8]"""
