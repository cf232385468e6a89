"""Why two dumps have no operation in common."""

from __future__ import annotations

from msprobe_collector.dump_format.values import abbreviated
from pytest_msprobe.suites.comparison.operations import DumpComparison
from pytest_msprobe.suites.comparison.sides import ComparedDump

_MOST_KINDS = 3
_KIND = {True: "Cells", False: "API calls"}
_MAPPINGS = "--msprobe-layer-mapping, --msprobe-cell-mapping, --msprobe-api-mapping and --msprobe-fuzzy"


def why_unmatched(comparison: DumpComparison) -> str:
    """The likely reason why no operation matched, on one line, with what to do."""
    target, golden = comparison.target, comparison.golden
    kinds = _kinds(target), _kinds(golden)
    if not kinds[0] & kinds[1]:
        return (
            f"no operation matched: the levels differ, the target holds {_listed(kinds[0])} and the golden dump "
            f"{_listed(kinds[1])}; dump both at one level"
        )
    names = f"{_names(target)} in the target, {_names(golden)} in the golden dump"
    if target.framework != golden.framework:
        return (
            f"no operation matched: the names of {target.framework} and {golden.framework} need another mapping "
            f"({names}); see {_MAPPINGS}"
        )
    if comparison.mappings.are_given:
        return f"no operation matched with the mapping that was given ({names}); leave it out, or see {_MAPPINGS}"
    return f"no operation matched: the dumps are of different models or steps ({names}); see --msprobe-fuzzy"


def _kinds(side: ComparedDump) -> set[str]:
    return {_KIND[operation.is_cell] for operation in side.operations}


def _listed(kinds: set[str]) -> str:
    return " and ".join(sorted(kinds)) or "nothing"


def _names(side: ComparedDump) -> str:
    names = list(dict.fromkeys(abbreviated(operation.name) for operation in side.operations))
    more = f" and {len(names) - _MOST_KINDS} more" if len(names) > _MOST_KINDS else ""
    return ", ".join(names[:_MOST_KINDS]) + more
