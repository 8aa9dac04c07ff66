"""Certificates: a signed file from which anybody can compute a run's or a node's epsilon again."""
