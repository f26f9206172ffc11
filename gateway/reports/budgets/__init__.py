"""Answers questions on budgets: the report, one budget in detail, and the demo's budgets."""
