"""Reports the months and a month's open items; closes none."""
