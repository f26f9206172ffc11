"""Contains the read-only reports, receipts and usage figures on Postgres, for CLI, API and
dashboard: `reports.py` opens them, and each value stands in the module of its concern.
"""
