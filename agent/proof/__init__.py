"""What proves who speaks, and what is said of an agent after its end. It needs nothing but the standard library."""
