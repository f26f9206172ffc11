"""The page *Close and export*: the checklist of a month, its close, re-allocations and files."""
