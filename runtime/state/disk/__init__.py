"""Checkpoints of a State on disk."""
