"""The jobs of a site in one process: started, watched, stopped. [PI-12]"""
