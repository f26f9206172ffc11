"""The HTTP edge: parse, authenticate, answer in the caller's dialect. No decisions."""
