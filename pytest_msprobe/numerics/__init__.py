"""Metrics and standards: pure functions on NumPy arrays; nothing of pytest, of a framework or of the other rooms.

`measurement` says how far two outputs are apart, a `Standard` of `judgement` or of `standards` turns that into a
`Judgement`, and `diagnosis` puts both into words. `indices` compares indices under ties, `chance` and `draws` samples
with their laws. The table of tolerances, `expected`, loads no other module.
"""
