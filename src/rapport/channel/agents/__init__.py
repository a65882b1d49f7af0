"""Publishers and listeners that survive network outages. [CH-5, CH-7, CH-8]"""
