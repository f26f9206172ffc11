"""Draws the pages of spending: the overview, and those that lead down from teams and from models to
single requests.
"""
