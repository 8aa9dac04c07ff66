"""Tools for developers of fedpriv itself."""
