"""How fast history and live streams run on Spark. [PI-5]"""
