"""Where NaN and Inf are born: each record of a dump classified, origins computed again, the first one named."""
