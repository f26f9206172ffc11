"""The allowed places of a request."""
