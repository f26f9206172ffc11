"""One serving process, assembled from its sides.

`main` imports it only for serving. It and `gateway.composition` alone name concrete adapters.
"""
