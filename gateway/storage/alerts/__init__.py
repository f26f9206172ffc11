"""Alerts in Postgres: the deliveries of each channel, and days that stand out."""
