"""How fast situations are decided."""
