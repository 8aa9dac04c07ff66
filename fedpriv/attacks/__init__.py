"""Attempts to refute a guarantee: membership inference, and audits of release code and of training."""
