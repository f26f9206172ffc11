"""Stores providers' bills, reads the metered usage beside them, and books true-ups."""
