"""The neutral values between two dialects: a conversation, the events of its answer, and the fields
that one of the two has no place for."""
