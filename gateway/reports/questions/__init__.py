"""Answers finance's questions, one file for each report, and reads past requests, residency
evidence and own usage.
"""
