"""The policy document, the price book and API keys, as frozen values."""
