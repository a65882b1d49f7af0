"""Messages as XML: the words of the XMessages paper, without any transport."""
