"""Real engines other than vLLM's chats behind a real gateway: `make engines`."""
