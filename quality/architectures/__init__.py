"""What networks of other packages leave in a dump: every call, every gradient, and what a pre-check says of them."""
