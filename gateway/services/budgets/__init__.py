"""The budget leases and limit units that one worker holds."""
