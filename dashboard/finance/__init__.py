"""Runs finance's commands as child processes under finance's own database login, for the pages that
change books; shows their confirmation, progress and result.
"""
