"""Commands about channels, and who may use them."""
