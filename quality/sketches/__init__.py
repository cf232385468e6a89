"""What sketches find of planted causes, and what the tensors of the suspects show then."""
