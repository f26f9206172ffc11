"""What reports select from, as SQL."""
