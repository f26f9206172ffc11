"""Receipts: the cost of one request, line by line."""
