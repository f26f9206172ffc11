"""Reports that are sent by a schedule, in Postgres: the schedules and their deliveries."""
