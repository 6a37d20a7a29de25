"""The store that all agents of a job share: its contract, its implementations, and how one is chosen."""
