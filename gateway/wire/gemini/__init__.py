"""Google's Gemini dialect of an upstream: generateContent, on AI Studio and on Vertex AI.

Its shapes are those of google-genai 3.6.1 (`types.py`, `models.py`), looked up 2026-11-24.
"""
