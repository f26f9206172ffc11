"""Contains the dashboard's pages, one module each: `page()` returns the menu entry, and `show()`
draws the page.
"""
