"""Worker processes: how they start, are watched from outside, and end, whatever happens to their agent."""
