"""Statements of cost centres: read from the ledger, and written as HTML and PDF.

The fonts are Source Sans Pro 2.020 (SIL Open Font License 1.1, `fonts/OFL.txt`), as they are in the
package font-source-sans-pro 0.0.1 of PyPI: Latin, Greek and Cyrillic letters.
"""
