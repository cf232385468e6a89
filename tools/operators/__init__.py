"""The tables of operators that a record may call."""
