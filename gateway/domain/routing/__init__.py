"""Decides which deployments may take a request and in which order, with the reasons; sends
nothing.
"""
