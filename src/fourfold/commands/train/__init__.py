"""The commands fit, validate, test and predict."""
