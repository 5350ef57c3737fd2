"""Commands of the course: its pages as notebooks, and its exercises as files."""
