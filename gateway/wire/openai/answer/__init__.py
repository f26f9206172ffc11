"""Answers on their way back: usage read, model name and cost put in."""
