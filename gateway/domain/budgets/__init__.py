"""Declares budgets and limits, and computes their periods, alerts, forecasts and messages;
`storage.budgets` keeps the amounts.
"""
