"""XPath 1.0 in its abbreviated form, on XML read safely."""
