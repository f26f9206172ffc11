"""The life of a request, from admission to settlement."""
