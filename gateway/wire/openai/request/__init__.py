"""Reads OpenAI request bodies into the facts that the gateway needs, and prepares the body for an
upstream.
"""
