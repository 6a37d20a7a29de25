"""Snapshots of a State in memory that outlives the workers: what they are, and how a worker reaches them."""
