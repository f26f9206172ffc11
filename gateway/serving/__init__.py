"""One serving process, assembled from its sides: the part of the composition root with slow
imports.

`main` imports it only for serving. It and `main` alone name concrete adapters.
"""
