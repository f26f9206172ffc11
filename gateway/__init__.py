"""The gateway: decides, forwards and meters. Start at `services/request/service.py`."""

__version__ = "0.1.0"
