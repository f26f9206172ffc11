"""The providers as data: companies' APIs and kinds of engines, their hosts and their quirks."""
