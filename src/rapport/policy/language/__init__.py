"""The policy language: text to tree and back. No I/O."""
