"""The ledger as people ask for it."""
