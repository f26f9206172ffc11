"""Answers questions about own GPUs: their bill and its parts, their cost beside an API's, and the
demand for which to plan engines.
"""
