"""The policy language: parses text to a tree and prints a tree as text. No I/O."""
