"""For us and for authors of plug-ins: suites, servers, commands."""
