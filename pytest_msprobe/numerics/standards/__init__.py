"""The standards that look at elements: each a rule from an `OutputPair` to a `Judgement`."""
