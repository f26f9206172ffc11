"""Forwards callers' requests to the deployments that the policy allows, and meters each attempt;
start reading at `services/request/service.py`.
"""

__version__ = "0.1.0"
