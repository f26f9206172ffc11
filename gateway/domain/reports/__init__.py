"""Reports that are handed to people: the statement of a cost centre, and its schedule."""
