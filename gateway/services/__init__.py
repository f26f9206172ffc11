"""The order of the steps. Services use ports (`services/ports.py`), never an adapter."""
