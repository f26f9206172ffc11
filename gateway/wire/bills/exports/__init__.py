"""Reads the exports of providers' bills into the lines of `domain.reconciliation`, one module a
kind of file; each names the published shape that it reads. Opens no file.
"""
