"""Between MindSpore and the records: which calls are seen, and how they are seen without changing what they compute."""
