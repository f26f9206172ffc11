"""Request bodies: the parts that the gateway reads, and the body for an upstream."""
