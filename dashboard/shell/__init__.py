"""Holds what every page has around its figures: the reader's choices in the address, the filter
bar, the search, and the tables and charts that can be clicked.
"""
