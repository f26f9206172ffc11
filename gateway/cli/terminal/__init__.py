"""Contains the commands' output on the terminal (tables, JSON, CSV, progress, heartbeat), and
`fetch`, their one way to send a GET.
"""
