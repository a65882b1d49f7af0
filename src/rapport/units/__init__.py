"""Units, quantities, coordinates, time formats: pure functions."""
