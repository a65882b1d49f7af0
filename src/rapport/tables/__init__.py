"""Pull data: rows about concept instances, loaded once, versioned."""
