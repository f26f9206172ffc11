"""Regions, and what is known of where providers process data."""
