"""The use cases of the gateway: each service orders the steps, and uses ports
(`services/ports.py`), never an adapter.
"""
