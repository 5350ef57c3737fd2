"""DataModules and datasets of the text tasks."""
