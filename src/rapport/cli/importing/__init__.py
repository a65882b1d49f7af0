"""Files that are imported, or guessed about: `rapport import`."""
