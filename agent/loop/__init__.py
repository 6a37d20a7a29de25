"""The one thread of an agent: it feeds observations to the engine and carries its effects out."""
