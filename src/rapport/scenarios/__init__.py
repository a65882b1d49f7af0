"""Worlds to try: a site, simulated sensors that disagree, and people who answer. [UX-7]"""
