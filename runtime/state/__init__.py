"""What a trainer keeps through changes of the world: `State`, and how newcomers and torn steps are healed."""
