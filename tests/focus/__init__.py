"""The official FOCUS validator on our own export: `make focus`, with a Python of its own."""
