"""Decides for each visitor of the dashboard: limits on connections and tabs, the sign-in with its
page, and the way back to the asked page.
"""
