"""The lake: tables of the open Delta protocol, written and read without Spark. [CH-16, LK-1]"""
