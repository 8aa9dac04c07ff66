"""The methods inside other people's Flower apps: a server half and a client half around the app's own training."""
