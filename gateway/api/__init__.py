"""The HTTP edge: it parses, authenticates and answers in the caller's dialect, and decides
nothing.
"""
