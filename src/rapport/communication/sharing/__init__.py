"""Several engines on one log and one store: shares, leases, places."""
