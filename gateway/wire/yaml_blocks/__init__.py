"""Documents in YAML, read into pydantic models that report every error with its line.

`nodes` turns text into YAML nodes, `findings` names their places, `blocks` has the mappings and
lists, `scalars` the texts and numbers. Nothing here knows which document is read.
"""
