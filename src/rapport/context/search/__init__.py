"""How a record is looked for: strategies of search."""
