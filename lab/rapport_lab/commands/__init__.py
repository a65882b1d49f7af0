"""Commands of `rapport ensemble` and `rapport demo` that need simulations or experiments."""
