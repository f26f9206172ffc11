"""Declares the policy, API keys, the price book and the policy's stored copies as frozen values;
`wire.policy` parses documents.
"""
