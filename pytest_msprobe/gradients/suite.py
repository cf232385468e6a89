"""Gradients as a suite: one item per rank, step and parameter, or per rank and step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest

from pytest_msprobe.gradients.nodes import GradientItem, RankFolder, RunFolder, StepFile, attach
from pytest_msprobe.gradients.report_plugin import GradientReport
from pytest_msprobe.gradients.run import RunError, RunPair
from pytest_msprobe.gradients.session import GradientSession
from pytest_msprobe.reports.suite_reports import register_reports
from pytest_msprobe.settings import Settings


class GradientSuite:
    """See `pytest_msprobe.suite.Suite`. As a plugin, it also collects the folders of the run."""

    item_type: ClassVar[type[pytest.Item]] = GradientItem

    def __init__(self, gradients: GradientSession) -> None:
        self._gradients = gradients

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """A run and its ranks are read by their own rules: steps in order, and no look at the files of signs."""
        target = self._gradients.pair.target
        if path in target.ranks.values():
            return RankFolder.of(parent, path, self._gradients)
        return RunFolder.of(parent, path, self._gradients) if path == target.root else None

    def wants(self, path: Path, parent: pytest.Collector) -> bool:
        """Whether `path` is a step of the run that can be judged."""
        return self._gradients.pair.find(path) is not None

    def collector(self, parent: pytest.Collector, path: Path) -> pytest.Collector:
        """The step whose summary is at `path`."""
        return StepFile.of(parent, path, self._gradients)

    def choose(self, items: list[pytest.Item]) -> None:
        """All items run."""

    def begin(self, items: list[pytest.Item]) -> None:
        """Items are independent of each other: what one needs of earlier steps it reads."""

    def attach(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Send an item's verdicts along with its report."""
        attach(item, report)

    def close(self) -> None:
        """Nothing outlives the items."""


def set_up(config: pytest.Config, settings: Settings, dumps: tuple[Path, ...]) -> GradientSuite:
    """The suite of a run over the gradients that the settings name, with its reports on the process that writes them.

    Raises:
        pytest.UsageError: there are no gradients, or dumps are to be checked as well.
    """
    root = settings.gradients.run
    if root is None:
        raise pytest.UsageError(
            "--msprobe-suite=gradients needs --msprobe-gradients=DIR, the dump_path of a grad_probe"
        )
    if dumps:
        raise pytest.UsageError(
            f"--msprobe-gradients={root}: gradients and dumps are judged in runs of their own; {dumps[0]} is a dump"
        )
    try:
        pair = RunPair.of(root, settings.golden)
    except RunError as error:
        raise pytest.UsageError(str(error)) from None
    _collect(config, settings, root)
    gradients = GradientSession(config.rootpath, pair, settings.gradients)
    if not hasattr(config, "workerinput"):
        _register_reports(config, settings, gradients)
    suite = GradientSuite(gradients)
    config.pluginmanager.register(suite, "msprobe-gradient-folders")
    return suite


def _collect(config: pytest.Config, settings: Settings, root: Path) -> None:
    """Have `root` collected, unless arguments name parts of it. Workers have another working folder."""
    config.option.msprobe_gradients = os.fspath(root)
    if settings.golden is not None:
        config.option.msprobe_golden = os.fspath(settings.golden)
    if config.args_source != pytest.Config.ArgsSource.ARGS:
        config.args[:] = [os.fspath(root)]
        return
    folder = config.invocation_params.dir
    named = [Path(os.path.abspath(folder / argument.partition("::")[0])) for argument in config.args]
    if not any(path.is_relative_to(root) for path in named):
        config.args.append(os.fspath(root))


def _register_reports(config: pytest.Config, settings: Settings, gradients: GradientSession) -> None:
    has_page = bool(config.getoption("htmlpath", None))
    report = GradientReport(gradients, settings.out, has_page=has_page)
    config.pluginmanager.register(report, "msprobe-gradients")
    files = [path for steps in gradients.pair.target.steps.values() for path in steps.values()]
    register_reports(config, settings, files, report.header, report.page_lines, title="Gradients", noun="gradients")
