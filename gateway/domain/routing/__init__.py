"""The choice of a deployment for a request, with its reasons."""
