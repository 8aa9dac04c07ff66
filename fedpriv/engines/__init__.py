"""How a message reaches a client, and its reply the server."""
