"""One participation of a client, and the families of client halves."""
