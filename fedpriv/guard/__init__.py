"""Any Flower app under a node's own budget: the sandbox it runs in, and what may leave of its answers."""
