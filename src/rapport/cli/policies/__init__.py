"""Commands about policies, as the compiler and a node see them."""
