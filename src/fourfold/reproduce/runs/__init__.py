"""Training runs behind the cells of a table: planning, scheduling and records."""
