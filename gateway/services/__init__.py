"""The order of the steps. Services see ports (`services/ports.py`), never an adapter."""
