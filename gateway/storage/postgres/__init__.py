"""The server, its logins, its schema, and connections to it."""
