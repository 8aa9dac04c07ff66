"""Rounds, and the families of server halves."""
