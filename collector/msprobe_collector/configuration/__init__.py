"""config.json of the collector: read, checked once, and folded with constructor arguments into a frozen Configuration.

Loads PyYAML when a configuration names an `api_list`, and no framework.
"""
