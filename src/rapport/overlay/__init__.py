"""Who is near and how word spreads: pure machines, without sockets and clocks of their own."""
