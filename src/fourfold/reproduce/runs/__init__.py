"""Training runs behind the numbers of a table: planning, scheduling and records."""
