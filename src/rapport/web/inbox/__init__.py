"""The inbox page of a person."""
