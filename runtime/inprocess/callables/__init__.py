"""What a user gives to the wrapper, and the state that it is called with."""
