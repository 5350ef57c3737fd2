"""Commands of the command line. Torch and Lightning are imported only when a command runs."""
