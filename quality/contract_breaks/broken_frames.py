"""Shows that the contract can fail: breaks the frame in each way of `contract_breaks`, and runs what must notice.

`python quality/contract_breaks/broken_frames.py [WORD [SUITE]]` runs the breaks whose name holds WORD, in one suite or
in all: about a minute for each break in all of them.
Exit code 1 when a case passes, in any suite, although the frame is broken.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CONTRACT = HERE.parents[1] / "tests" / "contract"

QUIET = ("-q", "--tb=no", "-rA", "-p", "no:cacheprovider")
#: The case that must notice each break.
CASES = {
    "an exception has no row": "test_marks_and_an_exception_in_the_judge or test_the_first_failure",
    "a skip mark has no row": "test_marks_and_an_exception_in_the_judge or test_a_run_that_judged_nothing",
    "an expected failure has no row": "test_marks_and_an_exception_in_the_judge or test_a_strictly_expected",
    "the row does not know xfail": "test_marks_and_an_exception_in_the_judge or test_a_strictly_expected",
    "a failure has no row": "test_records_in_are_rows_out or test_last_failed",
    "a dead worker has no row": "test_workers_that_die",
    "a hanging worker has no row": "test_a_record_that_hangs",
    "timeout is ignored": "test_a_record_that_hangs",
    "a broken setup has no row": "test_an_error_before_the_judge",
    "a record vanishes": "test_records_in_are_rows_out or test_of_the_sample",
    "the summary miscounts": "test_records_in_are_rows_out",
    "the run ends green": "test_records_in_are_rows_out or test_ctrl_c",
    "an empty run is green": "test_a_run_that_judged_nothing",
    "allow-empty is ignored": "test_a_run_that_judged_nothing",
    "-k is ignored": "test_markers_keywords_and_deselect",
    "-m is ignored": "test_markers_keywords_and_deselect",
    "items have no markers": "test_markers_keywords_and_deselect",
    "--deselect is ignored": "test_markers_keywords_and_deselect",
    "--lf is ignored": "test_last_failed",
    "-x is ignored": "test_the_first_failure",
    "shard is ignored": "test_shards",
    "every shard is the first": "test_shards",
    "resume is ignored": "test_a_killed_run or test_finished",
    "the select hook is not asked": "test_a_hook_selects or test_a_selection_that_raises or test_each_call_is_asked",
    "the verdict hook is not called": "test_each_verdict_is_told_once",
    "jsonl rows are doubled": "test_records_in_are_rows_out or test_workers_give_the_same_rows",
    "jsonl rows wait for the end": "(test_ctrl_c or test_a_killed_run) and alone",
    "junit says only the direction": "test_junit",
    "junit has no properties": "test_junit",
    "the page loses a record": "test_the_page_counts",
    "options without effect are taken": "test_options_are_honoured_or_refused",
    "node ids change": "test_of_the_sample or test_of_real_dumps",
    "a framework is imported": "test_no_framework",
}


def unnoticed(name: str, suite: str) -> list[str]:
    """The tests of `suite`, "test" for those of all, that pass although the frame is broken as `name` says."""
    command = [sys.executable, "-m", "pytest", "-m", "", str(CONTRACT), "-k", f"({CASES[name]}) and {suite}", *QUIET]
    environment = {**os.environ, "CONTRACT_BREAK": name, "PYTHONPATH": str(HERE)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE)
    assert failed or " passed" in ended.stdout, ended.stdout + ended.stderr
    return re.findall(r"^PASSED (\S+)", ended.stdout, re.MULTILINE)


def main(word: str = "", suite: str = "test") -> int:
    """Print a line per break; 1 when one goes unnoticed."""
    missed = 0
    for name in CASES:
        if word in name:
            passed = unnoticed(name, suite)
            missed += bool(passed)
            print(f"{'MISSED ' if passed else 'noticed'}  {name}", *passed, sep="\n    ", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
