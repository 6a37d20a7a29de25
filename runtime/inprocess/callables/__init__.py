"""The callbacks that a user gives to the wrapper, and the state that they are called with."""
