"""Commands about people and what is said to them."""
