"""The command line: one module per command group; `main.py` has the table of commands."""
