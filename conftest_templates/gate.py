"""A gate for CI: a pre-check fails only what rounding does not explain, in every dtype. The command line wins.

The same without a conftest.py, in pytest.ini:    msprobe_standard = backward-error
                       or in the YAML file:       standard: backward-error
"""

import pytest


@pytest.hookimpl(tryfirst=True)  # before the settings of the run are read
def pytest_configure(config):
    option = config.option
    is_other_suite = option.msprobe_golden or option.msprobe_gradients
    if option.msprobe_suite in (None, "auto", "precheck") and not is_other_suite:
        option.msprobe_standard = option.msprobe_standard or "backward-error"
