"""Applying a policy, planning it, testing it, explaining its decisions."""
