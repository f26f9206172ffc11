"""Reports on the records beside the bill: places of data, refused requests, prices, and
administrative acts.
"""
