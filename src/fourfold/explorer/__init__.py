"""Page of attention maps: document, files of the page, writing."""
