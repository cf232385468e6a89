"""Whether ranks that share a model compute what one run of the whole model does."""
