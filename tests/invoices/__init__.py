"""Providers' bills with planted differences, made without any code of `reconcile`."""
