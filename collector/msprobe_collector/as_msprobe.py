"""Importing this has imports of the existing tool, `msprobe`, find the collector, so that its scripts run as they are.

It stands in the first line of a script. Nothing does this by itself. `python -m msprobe_collector as-msprobe train.py`
does the same without a change of the script. Where the existing tool is installed, the import is refused.
"""

from msprobe_collector.msprobe_names import install

install()
