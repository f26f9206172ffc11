"""Reads YAML documents into pydantic models that report every error with its line; knows no
particular document.

`nodes` turns text into YAML nodes, `findings` names their places, `blocks` has the mappings and
lists, `scalars` the texts and numbers. `joined` makes several files one document, and
`joined_text` its text. `edit` sets one value in a text, and `trees` walks and compares nodes.
"""
