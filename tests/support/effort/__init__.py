"""What transformations cost by hand and declared, measured on our own files. [ME-15]"""
