"""The engine of one node, and what it consists of. Pure."""
