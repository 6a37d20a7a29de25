"""The keeper of a node's snapshots: a process beside the agent, which holds in memory what the workers have stored."""
