"""The main job: every API call of a dump, run, compared and judged."""
