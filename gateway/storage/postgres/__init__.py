"""Connects to Postgres, runs the embedded server, creates logins, applies migrations, and declares
the columns of views.
"""
