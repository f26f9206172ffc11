"""A request of `/v1/responses` as a neutral conversation, and neutral answer events as its
answer.
"""
