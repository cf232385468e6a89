"""What is at fault, told from machine rows alone."""

from __future__ import annotations

import json
import math
from collections import Counter

from msgspec import structs

from pytest_msprobe.answers import Reach, RowFacts, RunRows
from pytest_msprobe.reports.jsonl import encode_row
from pytest_msprobe.suites.comparison.accounting.account import Account, OutputAccount, ValueKey
from pytest_msprobe.suites.comparison.report import ComparisonSummary, RecordSummary
from pytest_msprobe.verdicts import RowCounts, StepPosition, VerdictRow

BORN = OutputAccount("output.0", 0.1, {}, {"born_target": 1.0}, None, {"born_target": "arises in the target: wrong."})


def row(record: str, place: int, account: Account) -> VerdictRow:
    summary = RecordSummary(record, place, "both", "pass", {"pass": 1})
    call, _, part = record.rpartition(".")
    return VerdictRow(
        node_id=f"dump.json::{call}::{part}",
        dump="/run/dump.json",
        call=call,
        part=part,
        recorded=(part,),
        selected=(part,),
        status="pass",
        outcome="passed",
        suite="comparison",
        place=StepPosition(order=place, source="train.py:7, in construct: y = exp(x)"),
        attachment={"summary": summary.to_wire(), "rows": [], "account": account.to_wire()},
    )


def key(path: str, target: str, golden: str) -> ValueKey:
    distance = 0.0 if target == golden else 0.5
    return ValueKey(path, path.startswith("output"), target, golden, distance, (4,), distance > 0, False, ("", ""))


def account(place: int, kind: str, *keys: ValueKey, blamed: tuple[OutputAccount, ...] = ()) -> Account:
    return Account(kind, outputs=blamed, keys=keys, partner="there", place=place, partner_place=place)  # type: ignore[arg-type]


def rows() -> RunRows:
    return RunRows(RowFacts(suite="comparison"), RowCounts(Counter(passed=2)))


def test_an_operation_at_fault_leads() -> None:
    found = ComparisonSummary()
    found.add(
        row("Mint.sum.0.forward", 1, account(1, "inherited", key("input.0", "b", "B"), key("output.0", "c", "C")))
    )
    wrong = account(0, "fault", key("input.0", "a", "a"), key("output.0", "b", "B"), blamed=(BORN,))
    found.add(row("Mint.exp.0.forward", 0, wrong))
    (finding,) = found.answer(rows()).findings
    place = finding.place
    assert (finding.kind, place.record, place.source) == ("born", "Mint.exp.0.forward", "train.py:7")
    assert found.answer(rows()).reach == Reach(1, "Mint.sum.0.forward")


def test_equal_runs_and_rounding_blame_nothing() -> None:
    equal, rounding = ComparisonSummary(), ComparisonSummary()
    equal.add(row("Mint.exp.0.forward", 0, account(0, "equal", key("input.0", "a", "a"), key("output.0", "b", "b"))))
    last = account(0, "rounding", key("input.0", "a", "a"), key("output.0", "b", "B"))
    rounding.add(row("Mint.exp.0.forward", 0, last))
    answers = [found.answer(rows()) for found in (equal, rounding)]
    assert [(answer.outcome, answer.findings, answer.measure.kind) for answer in answers] == [
        ("right", (), "equal"),
        ("right", (), "rounding"),
    ]


def test_figures_that_json_has_no_word_for_come_back() -> None:
    """A difference from zeros is infinitely large, and outputs of other shapes have no size at all."""
    far = structs.replace(key("input.0", "a", "A"), distance=math.inf, excess=math.inf)
    other = OutputAccount("output.0", math.inf, {"defined": math.inf}, {}, None, {"defined": "called otherwise: 3"})
    sent = account(0, "fault", far, key("output.0", "b", "B"), blamed=(other,))
    written = encode_row("Mint.exp.0", row("Mint.exp.0.forward", 0, sent))
    assert Account.from_wire(json.loads(written)["attachment"]["account"]) == sent
    assert Account.from_wire(sent.to_wire()) == sent
