"""Commands about interpretations, tables and what is held back."""
