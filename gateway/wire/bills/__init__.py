"""Parses the files of bills that people import."""
