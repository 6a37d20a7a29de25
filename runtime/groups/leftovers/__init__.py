"""What torch keeps of a world that is over, and would use again in the next one."""
