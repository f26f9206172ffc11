"""The translation of Anthropic's messages from and to neutral values."""
