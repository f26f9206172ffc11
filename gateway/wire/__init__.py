"""Shapes and codecs of what travels: JSON bodies, server-sent events, policy documents. No I/O."""
