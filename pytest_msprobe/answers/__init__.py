"""What a run amounts to, as data, and the sentences that say it."""
