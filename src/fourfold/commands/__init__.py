"""Commands of the command line, which import torch and Lightning only when a command runs."""
