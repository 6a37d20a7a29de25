"""What the agents do, step by step, for each paragraph of the RFC: files that a person can read."""
