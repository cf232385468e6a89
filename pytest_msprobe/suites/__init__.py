"""The suites: each is one way to judge the records of dumps."""
