"""HTML page that shows the attention maps, predictions and statistics of a model."""
