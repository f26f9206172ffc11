"""Logs and metrics, without prompts, completions or keys."""
