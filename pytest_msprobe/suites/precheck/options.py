"""What the pre-check can be asked to do, and its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_msprobe.suites import option_values
from pytest_msprobe.suites.option import Option
from pytest_msprobe.suites.precheck.numeric_options import NUMERIC_OPTIONS, NumericSettings
from pytest_msprobe.suites.shared_options import BENCHMARK_OPTIONS, DATA_DIR, DEVICE_OPTIONS

if TYPE_CHECKING:
    from pytest_msprobe.engines.specification import DeviceSpecification
    from pytest_msprobe.suites.precheck.standard_choice import StandardChoice

_DEFAULT_ERROR_DATA = "error_data in --msprobe-out"


@dataclass(frozen=True, slots=True)
class PrecheckSettings:
    """What is tested against what, by which rule, and what failing API calls leave behind.

    Attributes:
        device, bench, bench_python: what is tested, against what, and with which interpreter.
        seed: of random inputs.
        max_memory_bytes: an API call that may need more is skipped.
        standard: name of the rule for verdicts.
        standards: what is judged by another one.
        cosine, max_abs: limits of the default standard.
        error_data, reproducers: folders for what failing calls leave behind, or None.
        error_data_limit_bytes: how much each of them may take.
        devices: ids that workers may use; empty for all that are visible.
        workers_per_device: how many workers may share one.
        remote_root: folder that corresponds to rootdir on other hosts, as they call it, or "".
        numeric: what the device does to numbers, and how many random inputs are drawn.
    """

    device: DeviceSpecification
    bench: str
    bench_python: str | None
    seed: int
    max_memory_bytes: int
    standard: str
    standards: StandardChoice
    cosine: float
    max_abs: float
    error_data: Path | None
    reproducers: Path | None
    error_data_limit_bytes: int
    devices: tuple[str, ...]
    workers_per_device: int
    remote_root: str
    numeric: NumericSettings

    @classmethod
    def of(cls, values: Mapping[str, Any], out: Path) -> PrecheckSettings:
        """The settings in `values`, which hold a parsed value for every one of `OPTIONS`; `out` holds the results."""
        names = ("device", "bench", "bench_python", "seed", "standard", "standards", "cosine", "max_abs", "reproducers")
        more = ("devices", "workers_per_device", "remote_root")
        return cls(
            **{name: values[name] for name in (*names, *more)},
            max_memory_bytes=values["max_memory"],
            error_data=values["error_data_dir"] or (out / "error_data" if values["save_error_data"] else None),
            error_data_limit_bytes=values["error_data_limit"],
            numeric=NumericSettings.of(values),
        )


def _standard(text: str) -> str:
    from pytest_msprobe.suites.precheck.standard_choice import standard_name

    return standard_name(text)


def _standards(value: Any, file: str) -> StandardChoice:
    from pytest_msprobe.suites.precheck.standard_choice import StandardChoice, read_choice

    return read_choice(value, file) if value is not None else StandardChoice()


def _error_data_folder(text: str) -> Path | None:
    return None if text == _DEFAULT_ERROR_DATA else option_values.optional_path(text)


OPTIONS = (
    *DEVICE_OPTIONS,
    *BENCHMARK_OPTIONS,
    DATA_DIR,
    Option(
        "standard",
        "NAME",
        "precheck: rule for verdicts: cosine-maxabs, backward-error, fused, absolute-threshold, benchmark, ulp, "
        "binary, thousandth, accumulative-error or msprobe",
        "cosine-maxabs",
        _standard,
    ),
    Option("cosine", "X", "precheck, default standard: the cosine must be above X", "0.99", option_values.cosine),
    Option(
        "max_abs",
        "X",
        "precheck, default standard: the maximum absolute error must be below X",
        "1e-4",
        option_values.positive,
    ),
    *NUMERIC_OPTIONS,
    Option(
        "edge_cases",
        "",
        "precheck: check every API with constructed inputs as well: empty, scalar, broadcast, strided and large "
        "tensors, extreme values, NaN, Inf",
        "",
        option_values.switch,
        bare="true",
    ),
    Option("standards", "", "standards by dtype and API", "", _standards, is_yaml_only=True),
    Option(
        "save_error_data",
        "",
        "precheck: save inputs and outputs of every failing API call, as a dump that can be checked again",
        "",
        option_values.switch,
        bare="true",
    ),
    Option(
        "error_data_dir",
        "DIR",
        "precheck: save inputs and outputs of failing API calls in DIR; implies --msprobe-save-error-data",
        _DEFAULT_ERROR_DATA,
        _error_data_folder,
        is_path=True,
    ),
    Option(
        "reproducers",
        "DIR",
        "precheck: write a script with its data for every failing API call into DIR",
        "",
        option_values.optional_path,
        is_path=True,
    ),
    Option(
        "error_data_limit",
        "SIZE",
        "precheck: largest size of the folder of error data, and of the folder of reproducers",
        "1GB",
        option_values.size,
    ),
)
