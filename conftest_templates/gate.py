"""A gate for CI: a pre-check fails only what rounding does not explain, in every dtype. The command line wins.

The same without a conftest.py, in pytest.ini:    msprobe_standard = backward-error
                       or in the YAML file:       standard: backward-error
A baseline.json beside this file holds failures that are known: python -m pytest_msprobe baseline DUMP -o baseline.json
"""

from pathlib import Path

import pytest

BASELINE = Path(__file__).with_name("baseline.json")


@pytest.hookimpl(tryfirst=True)  # before the settings of the run are read
def pytest_configure(config):
    option = config.option
    is_other_suite = option.msprobe_golden or option.msprobe_gradients
    if option.msprobe_suite in (None, "auto", "precheck") and not is_other_suite:
        option.msprobe_standard = option.msprobe_standard or "backward-error"
    if BASELINE.is_file() and not config.getini("msprobe_baseline"):
        option.msprobe_baseline = option.msprobe_baseline or str(BASELINE)
