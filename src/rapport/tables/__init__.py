"""Tables of pull data: rows about instances of concepts, read from sources, versioned."""
