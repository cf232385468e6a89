"""The command line without secrets, and the git revision of a script's repository, read from files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from msprobe_collector.recording.process import command_line, environment, git_revision, variables

REVISION = "0123456789abcdef0123456789abcdef01234567"


def repository(folder: Path, head: str, **files: str) -> Path:
    """A folder with a .git of these files, `refs__heads__main` standing for refs/heads/main."""
    for name, text in {"HEAD": head, **files}.items():
        path = folder / ".git" / name.replace("__", "/").replace("packed_refs", "packed-refs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_branch_is_read_from_its_file(tmp_path: Path) -> None:
    repository(tmp_path, "ref: refs/heads/main\n", refs__heads__main=f"{REVISION}\n")
    (tmp_path / "scripts").mkdir()
    assert git_revision(tmp_path / "scripts") == {"revision": REVISION, "branch": "main"}


def test_a_packed_branch_and_a_detached_head_are_read(tmp_path: Path) -> None:
    packed = f"# pack-refs with: peeled\n{'f' * 40} refs/heads/mainly\n{REVISION} refs/heads/main\n^{'e' * 40}\n"
    repository(tmp_path / "a", "ref: refs/heads/main\n", packed_refs=packed)
    assert git_revision(tmp_path / "a") == {"revision": REVISION, "branch": "main"}
    assert git_revision(repository(tmp_path / "b", f"{REVISION}\n")) == {"revision": REVISION}


def test_a_real_repository_and_its_worktree_agree_with_git(tmp_path: Path) -> None:
    def git(*arguments: str, folder: Path) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    main, tree = tmp_path / "main", tmp_path / "tree"
    main.mkdir()
    git("init", "-b", "trunk", folder=main)
    git("commit", "--allow-empty", "-m", "one", folder=main)
    git("worktree", "add", "-b", "other", str(tree), folder=main)
    git("commit", "--allow-empty", "-m", "two", folder=tree)
    for folder, branch in ((main, "trunk"), (tree, "other")):
        assert git_revision(folder) == {"revision": git("rev-parse", "HEAD", folder=folder), "branch": branch}
    git("pack-refs", "--all", folder=main)
    assert git_revision(tree)["revision"] == git("rev-parse", "HEAD", folder=tree)


@pytest.mark.parametrize(
    "head",
    ["", "ref: ", "ref: refs/../../secret\n", "ref: /etc/passwd", "\0" * 50, "x" * 10000, "ref: refs/heads/none"],
)
def test_a_broken_repository_gives_no_revision(tmp_path: Path, head: str) -> None:
    (tmp_path / "secret").write_text(REVISION)
    assert "revision" not in git_revision(repository(tmp_path / "a", head))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".git").write_text("gitdir: ../nowhere")
    assert git_revision(tmp_path / "b") == {}


def test_values_that_may_be_secrets_are_hidden(tmp_path: Path) -> None:
    arguments = ["train.py", "--lr", "0.1", "--hf-token", "abc", "--api_key=def", "AWS_SECRET=ghi", "--auth", "-v"]
    assert command_line([*arguments, "https://me:pass@host/x"], tmp_path) == [
        *("train.py", "--lr", "0.1", "--hf-token", "***", "--api_key=***", "AWS_SECRET=***", "--auth", "-v"),
        "https://***@host/x",
    ]


def test_the_folder_of_the_dump_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = command_line(["train.py", "out/dump", f"--dump={tmp_path / 'out'}", "data", ""], Path("out/dump"))
    assert found == ["train.py", "DUMP", "--dump=DUMP", "data", ""]


def test_only_variables_of_the_table_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "x" * 1000)
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    found = environment()
    assert found["NCCL_ALGO"] == "x" * 256
    assert set(found) <= set(variables())
