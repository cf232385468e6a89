"""Plain `pytest --msprobe-dump=dump.json` on every card: one worker process per device.

What stands here is what `-n`, `--msprobe-device-ids` and `--msprobe-workers-per-device` say; the command line wins.
"""

import pytest

WORKERS = "auto"  # as -n: "auto" is one worker per visible device (without one: per core), or a number
DEVICES = ""  # as --msprobe-device-ids: "" is all that ASCEND_RT_VISIBLE_DEVICES lets us see, or "4,5,6,7", or "0-3"
WORKERS_PER_DEVICE = ""  # as --msprobe-workers-per-device: "2" keeps a card busy that small calls leave idle


@pytest.hookimpl(tryfirst=True)  # before xdist turns -n into workers
def pytest_cmdline_main(config):
    option = config.option
    if hasattr(config, "workerinput") or option.collectonly or option.usepdb:
        return
    if option.numprocesses is None and not option.tx:
        option.numprocesses = WORKERS if WORKERS == "auto" else int(WORKERS)
    option.msprobe_device_ids = option.msprobe_device_ids or DEVICES or None
    option.msprobe_workers_per_device = option.msprobe_workers_per_device or WORKERS_PER_DEVICE or None
