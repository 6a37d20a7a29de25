"""The calls of live_workers: one verdict for all workers of a world, and no store in the path of a step."""
