"""Logs and metrics: how the product tells what it does, without prompts, completions or keys."""
