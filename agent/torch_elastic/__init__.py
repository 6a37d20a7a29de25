"""torch's elastic package: all that softrun uses of it, and what softrun offers in its shape."""
