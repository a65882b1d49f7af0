"""Commands that make a site, check it, run it and look after it."""
