"""Contains `tollgate up` (its steps, child processes, demo policy, waits and tour), and `tollgate
demo-data`.
"""
