"""Commands of the command line; heavy packages are imported when a command runs."""
