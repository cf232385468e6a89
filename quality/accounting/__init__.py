"""How often the accounting of a difference names the planted cause."""
