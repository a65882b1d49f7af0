"""How a message gets to people and what is known of it on the way: machine, records, turns."""
