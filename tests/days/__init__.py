"""The days on which a calendar surprises programs, and a wall clock that can be moved to them."""
