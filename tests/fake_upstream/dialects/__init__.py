"""The dialects that the fake upstream speaks beside OpenAI's: a file each, and one that reads
their requests.
"""
