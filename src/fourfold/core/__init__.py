"""The shared attention, block and stack: torch only."""
