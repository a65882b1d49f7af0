"""Generated Python: transformers of typed interpretations and their fast path from JSON to JSON."""
