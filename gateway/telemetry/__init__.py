"""Writes the logs and the metrics of a serving process, without prompts, completions or keys."""
