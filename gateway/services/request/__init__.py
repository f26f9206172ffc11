"""Takes a request from its decision and admission through its attempts to their settlement;
`service.py` has the steps.
"""
