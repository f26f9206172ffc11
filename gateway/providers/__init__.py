"""One file per provider: address, translation, usage and error mapping."""
