"""What the doors of a node tell programs about themselves. [CH-12, UX-5]"""
