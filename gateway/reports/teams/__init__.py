"""Contains the reading of one team's own page: its keys, limits, budgets, spending and errors."""
