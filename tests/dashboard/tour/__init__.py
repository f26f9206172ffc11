"""A tour of the dashboard in a browser: every page, as finance and as a team lead."""
