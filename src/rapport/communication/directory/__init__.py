"""Who can be reached: the site file and the store."""
