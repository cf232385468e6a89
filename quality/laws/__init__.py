"""Small trainings that break a law of training, and right ones; how often the laws say so."""
