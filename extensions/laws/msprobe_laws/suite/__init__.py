"""Which laws of training do not hold: from records of optimizers, and from what was checked while training ran."""
