"""Where NaN and Inf first appear: each record of a dump classified, origins computed again, the first one named."""
