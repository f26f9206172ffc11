"""Tests of a whole gateway; it ends with the last test of this package."""
