"""The engine of one node and its parts: what an agent decides. Every file here is pure."""
