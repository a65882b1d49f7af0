"""For authors of plug-ins: the suites that every adapter passes."""
