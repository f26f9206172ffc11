"""The Postgres server, its logins, its schema, and connections to it."""
