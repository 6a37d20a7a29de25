"""Who leads, and how one agreed world becomes the next. Pure."""
