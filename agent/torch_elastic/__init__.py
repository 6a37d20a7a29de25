"""torch's elastic package: what softrun uses of it, and what softrun offers in its shape."""
