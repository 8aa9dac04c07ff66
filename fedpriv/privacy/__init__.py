"""What releases cost: events, ledgers, their composition, claims, and the auditor.

Import the modules themselves: nothing is loaded from here.
"""
