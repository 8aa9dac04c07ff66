"""The guard: any Flower app under a node's own budget. What leaves is what the guard makes of the app's answers."""
