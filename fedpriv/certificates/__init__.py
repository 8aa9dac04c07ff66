"""Certificates: a signed file from which anybody can compute the epsilon of a run or a node again, without fedpriv."""
