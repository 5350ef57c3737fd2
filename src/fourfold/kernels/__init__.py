"""What a machine does faster than torch: nobody has to read it to know what a model does."""
