"""Every option, its range, and how YAML becomes a `Config`; imports nothing heavy."""
