"""Server halves of the methods: one file per method, the same stem as its client half."""
