"""A model as one flat vector, and local training of it."""
