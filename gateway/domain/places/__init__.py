"""Regions, and the known facts about where providers process data."""
