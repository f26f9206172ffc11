"""The budget leases that one worker holds."""
