"""The per-node agent: a pure engine, and the thin shells around it that touch the world."""
