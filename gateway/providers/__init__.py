"""Contains one adapter per provider (address, translation, usage, errors), and the transport,
credentials, token counting, engine samples and alert webhook.
"""
