"""The machine of a broker, in parts: pure, without sockets and clocks of its own."""
