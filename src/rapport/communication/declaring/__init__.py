"""What a site file says about people, actions and privacy."""
