"""Many agents in one process: the service's vote without its network, and experiments on it."""
