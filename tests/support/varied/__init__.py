"""Random sites, policies, interpretations and streams: the same seed gives the same."""
