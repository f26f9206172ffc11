"""Contains `tollgate doctor` and its checks of the ledger and of this machine; `tollgate up` uses
the machine's too.
"""
