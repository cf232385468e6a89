"""Which PyTorch call has the mathematics of a recorded API call: apis/facts/torch_calls, bound and run.

Only names and arguments live here. Neither framework is imported; `adapters` imports PyTorch and is
loaded by the torch engine alone, when it runs something.
"""
