"""The durable log that everything passes through."""
