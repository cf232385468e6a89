"""One API call with the values that running it needs."""
