"""live_workers: a block of work that succeeds on all workers or raises on all, and one agreed set of who was in it."""
