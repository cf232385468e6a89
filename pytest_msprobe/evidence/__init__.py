"""What a failing API call leaves on disk: error data, reproducers, plots."""
