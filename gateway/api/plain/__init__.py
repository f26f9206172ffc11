"""The endpoints that FastAPI serves, each with its handler: all except forwarding. `endpoints.py`
holds the dependencies and the steps that the handlers share.
"""
