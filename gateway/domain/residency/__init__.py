"""The places at which a request may be processed, and the denials of all others."""
