"""`tollgate demo-data`: generated usage to look at before there is any of one's own."""
