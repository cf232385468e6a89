"""Who can execute an API call. See `protocol` for the contract and `selection` for who is asked when."""
