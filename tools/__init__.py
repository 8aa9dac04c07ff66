"""Tools for those who work on fedpriv itself."""
