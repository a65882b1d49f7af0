"""Output adapters at work: selection, instances, lanes, marks."""
