"""Reads and writes the OpenAI dialect: requests, answers, streams, usage and errors; sends
nothing.
"""
