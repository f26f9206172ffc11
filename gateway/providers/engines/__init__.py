"""Adapters of engines that have a dialect of their own besides OpenAI's."""
