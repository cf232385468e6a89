"""Trainings of which one thing is changed, and what their manifests say first of the difference."""
