"""Worker processes: how they start, are watched from outside, and end, whatever their agent comes to."""
