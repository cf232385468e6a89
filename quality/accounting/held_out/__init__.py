"""Causes and clean pairs of other networks, dumped by the collector; the accounting was not made with them."""
