"""Smart car sharing: cars, buses and people who find each other without a server. [EN-13]"""
