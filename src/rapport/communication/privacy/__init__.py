"""When a person may be reached."""
