"""Rewrites OpenAI answers on their way to the caller: reads their usage, puts in the caller's model
name and leaves a placeholder for the cost.
"""
