"""The dialect of Anthropic's messages: requests of its clients, answers of its upstreams, usage,
errors, and its translation from and to neutral values."""
