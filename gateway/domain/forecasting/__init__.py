"""Forecasts of daily amounts, and days that stand out: arithmetic without a database."""
