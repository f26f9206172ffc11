"""Where a request may be processed."""
