"""The demo organisation of `tollgate demo-data --months`: its teams, its traffic and its bills."""
