"""Checks of other people's private code: claimed, verified and audited epsilon of a function, a mod, a loop, an app."""
