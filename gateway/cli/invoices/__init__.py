"""Commands of `tollgate reconcile` on providers' bills: import, show and approve."""
