"""Accounting, claims, noise and audits. Import the modules themselves: nothing is loaded from here."""
