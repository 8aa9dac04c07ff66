"""Deployments: a node's policy and ledger, and the gates before its SuperNode and the SuperLink."""
