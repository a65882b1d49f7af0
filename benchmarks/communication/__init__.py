"""How fast messages reach people and answers come back. [CO-7]"""
