"""States facts of the migrated tables for the program: the oldest revision, and the columns from
which queries are composed.
"""
