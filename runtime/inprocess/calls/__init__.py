"""One call of a wrapped function: its iterations, and how its ranks meet."""
