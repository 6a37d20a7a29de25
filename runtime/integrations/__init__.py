"""Libraries that have a training loop, or a process group, of their own: one function for each."""
