"""What ends a run in one plain sentence."""


class InputError(ValueError):
    """Bad input from the user, said in one plain sentence that names the file, line or value.

    The command line prints the sentence alone and exits with code 2.
    """


class TrainingStopped(RuntimeError):
    """Training that cannot go on, though its input is what it should be; exit code 1."""
