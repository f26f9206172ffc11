"""`tollgate up`: its steps, its children, its tour."""
