"""From values to files: statistics, encodings, and the records of a step as they stream to disk."""
