"""Known issues: API calls that are expected to fail, listed in known_issues.txt beside this file.

They count as xfailed instead of failed. One that passes again fails the run, so that its line is removed; a line that
matches nothing is a warning.
"""

import warnings
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("known_issues.txt")


def read_list():
    """Reason of each known issue by its id; a line is `id  # reason`."""
    lines = (line.partition("#") for line in LIST.read_text(encoding="utf-8").splitlines())
    return {name.strip(): reason.strip() for name, _, reason in lines if name.strip()}


@pytest.hookimpl(tryfirst=True)  # before -k, -m and pytest_msprobe_select take items away
def pytest_collection_modifyitems(config, items):
    known, used = read_list(), set()
    for item in items:
        # dump.json::Mint.exp.0::forward is meant by that id, by Mint.exp.0::forward, and by Mint.exp.0
        _, _, short = item.nodeid.partition("::")
        for name in (item.nodeid, short, short.partition("::")[0]):
            if name in known:
                used.add(name)
                item.add_marker(pytest.mark.xfail(reason=known[name] or "known issue", strict=True))
                break
    is_part = getattr(config.option, "lf", False) or any("::" in str(argument) for argument in config.args)
    is_first = getattr(config, "workerinput", {}).get("workerid", "gw0") == "gw0"  # not once per worker of -n
    for name in known:
        if name not in used and is_first and not is_part:
            warnings.warn(pytest.PytestWarning(f"{LIST.name}: {name} matches no API call of this run"), stacklevel=1)
