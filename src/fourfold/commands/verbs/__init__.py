"""What a trained model can be asked to do with a line: translate, generate, fill, classify."""
