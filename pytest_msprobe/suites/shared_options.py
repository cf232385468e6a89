"""Options of more than one suite."""

from __future__ import annotations

from pytest_msprobe.suites import option_values
from pytest_msprobe.suites.option import Option

GOLDEN = Option(
    "golden",
    "PATH",
    "comparison, gradients: dump.json, folder of dumps or gradient run to compare with",
    "",
    option_values.optional_path,
    is_path=True,
)

DATA_DIR = Option(
    "data_dir",
    "DIR",
    "precheck, comparison, overflow, repeat: absolute folder outside the dump whose tensor files may be read "
    "(dump_data_dir or the target of a link); may be repeated",
    "",
    option_values.absolute_folder,
    is_list=True,
)

SEED = Option(
    "seed", "N", "precheck, overflow, repeat: seed of random inputs for dumps without tensors", "0", option_values.seed
)

BENCH = Option(
    "bench",
    "BENCH",
    "precheck, comparison, overflow: float64 CPU benchmark: auto, torch or mindspore",
    "auto",
    option_values.bench,
)

BENCH_PYTHON = Option(
    "bench_python",
    "FILE",
    "precheck, comparison, overflow: Python interpreter that runs the benchmark in a process of its own",
    "",
    option_values.interpreter,
)

MAX_MEMORY = Option(
    "max_memory",
    "SIZE",
    "precheck, comparison, overflow, repeat: do not compute API calls that may need more memory, e.g. 16GB; auto is "
    "80 %% of this machine",
    "auto",
    option_values.memory,
)

#: Of suites that compute API calls on the CPU, on random inputs where a dump holds none.
BENCHMARK_OPTIONS = (BENCH, BENCH_PYTHON, SEED, MAX_MEMORY)

#: Of suites that run API calls on devices.
DEVICE_OPTIONS = (
    Option(
        "device",
        "DEVICE",
        "precheck, repeat: what is tested: auto, recorded, mindspore[:cpu|:ascend[:ID]] or "
        "torch[:cpu|:cuda[:ID]|:npu[:ID]]; recorded values cannot be repeated",
        "auto",
        option_values.device,
    ),
    Option(
        "devices",
        "IDS",
        "precheck, repeat: device ids for the workers of -n, such as 4,5,6,7 or 0-3",
        "all visible",
        option_values.devices,
    ),
    Option(
        "workers_per_device", "K", "precheck, repeat: how many workers may share a device", "1", option_values.count
    ),
    Option(
        "remote_root",
        "DIR",
        "precheck, repeat, with --tx ssh=...: folder on the other hosts that corresponds to rootdir",
        "",
        str,
    ),
)
