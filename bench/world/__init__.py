"""A simulated day of requests, deployments and outages."""
