"""Serves one profile on many machines with Ray Serve LLM: refuses the settings that Ray cannot
honour, builds its configuration, and supervises the program that deploys it.

Ray schedules, routes and restarts. Nothing here does.
"""
