"""Adapters for Google's Gemini on AI Studio and Vertex AI, and their access tokens."""
