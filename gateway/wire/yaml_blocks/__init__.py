"""Reads YAML documents into pydantic models that report every error with its line; knows no
particular document.

`nodes` turns text into YAML nodes, `findings` names their places, `blocks` has the mappings and
lists, `scalars` the texts and numbers.
"""
