"""Reading and writing of checkpoint files and of the models in them. Lightning is not needed."""
