"""The reports, one file for each question of finance."""
