"""One directory describes a deployment: loaded and checked here."""
