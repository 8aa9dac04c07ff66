"""What `import fedpriv` offers: runs, plans, audits and attacks as calls that return objects.

The package's own names are listed in `fedpriv/__init__.py`, which imports this only when one is used.
"""
