"""Holds the frame of every page: the reader's choices in the address, the filter
bar, the search, and the tables and charts that can be clicked.
"""
