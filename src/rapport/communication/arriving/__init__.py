"""What comes in, and how we know who sent it."""
