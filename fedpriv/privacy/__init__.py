"""What releases cost: events, ledgers, their composition, claims, and the auditor.

Import the modules directly: this package loads none of them.
"""
