"""One run, for every suite alike: settings, selection, what becomes of an item."""
