"""One serving process, put together from its sides: the part of the composition root that is heavy
to import.

`main` imports it when it serves; no other command has to. It and `main` alone name concrete
adapters.
"""
