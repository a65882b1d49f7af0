"""Events whose handlers gave up, and what people do about them. [CH-14]"""
