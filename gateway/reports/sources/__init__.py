"""The relations that reports select from, as SQL."""
