"""Our families against their peers, in one run."""
