"""What a run leaves behind. Reports know rows, and nothing of engines."""
