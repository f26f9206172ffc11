"""Writes reports as CSV, JSON, Parquet and XLSX files, with the rows and columns of the JSON."""
