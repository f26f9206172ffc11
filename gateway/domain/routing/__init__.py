"""Which deployment takes a request, and why."""
