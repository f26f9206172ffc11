"""Fuzzes our HTTP/1.1 client alone: mutated answers, every split, real sockets. No gateway runs."""
