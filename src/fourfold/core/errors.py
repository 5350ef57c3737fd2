"""The one exception that means: the input is wrong, not the program."""


class InputError(ValueError):
    """Bad input from the user, said in one plain sentence that names the file, line or value.

    The command line prints the sentence alone and exits with code 2.
    """
