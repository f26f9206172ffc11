"""Lists the members of each provider's requests, as its published schema names them, with the
effect of each one on the bound of an attempt's cost.
"""
