"""What of a plan Spark can do by itself, without Python. [PI-5]"""
