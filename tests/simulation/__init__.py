"""Many real engines in a simulated world: a virtual clock, a network, a store and workers that fail by a seed."""
