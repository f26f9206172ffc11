"""Usage events, journals, adjustments and roll-ups, in Postgres."""
