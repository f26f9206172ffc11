"""Contains the `tollgate price` commands: those that print prices in `commands.py`, those that
write them in `write_commands.py`.
"""
