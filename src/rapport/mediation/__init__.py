"""Making data mean the same to both sides."""
