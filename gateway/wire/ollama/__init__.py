"""Ollama's own dialect of an upstream: `/api/chat`.

Its shapes are those of ollama 0.6.3 for Python (`_types.py`) and of the server's `api/types.go`,
looked up 2026-11-24.
"""
