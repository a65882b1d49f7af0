"""Which events a request wants: templates and SQL-like conditions, compiled once."""
