"""Stores the gateway's state in Postgres and in local journal, pepper and snapshot files; only this
package and `reports` contain SQL.
"""
