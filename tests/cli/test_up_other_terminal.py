"""The line of `tollgate up` that lets another terminal find the command."""

from __future__ import annotations

from pathlib import Path

from gateway.cli.up.commands import export_line


def installed(folder: Path) -> Path:
    """Return the folder of an installed command."""
    folder.mkdir()
    command = folder / "tollgate"
    command.touch(mode=0o755)
    return folder


def test_a_command_beside_the_path_gets_a_line_for_other_terminals(tmp_path: Path) -> None:
    """After `make run` the printed `tollgate report receipt …` ended in "command not found"."""
    bin_folder = installed(tmp_path / "my bin")
    variables = {"PATH": "/usr/bin", "TOLLGATE_HOME": "/srv/tollgate home"}

    assert export_line(bin_folder, variables) == (
        f"export PATH='{bin_folder}':\"$PATH\" TOLLGATE_HOME='/srv/tollgate home'"
    )
    assert export_line(bin_folder, {"PATH": "/usr/bin"}) == f"export PATH='{bin_folder}':\"$PATH\""


def test_a_command_on_the_path_needs_no_line(tmp_path: Path) -> None:
    """In an active environment the line would be noise; another copy's command is not ours."""
    bin_folder, other = installed(tmp_path / "bin"), installed(tmp_path / "other")

    assert export_line(bin_folder, {"PATH": f"{bin_folder}:{other}"}) is None
    assert export_line(bin_folder, {"PATH": f"{other}:{bin_folder}"}) is not None


def test_without_an_installed_command_nothing_is_promised(tmp_path: Path) -> None:
    """`python -m gateway.main up` from a checkout has no command to find."""
    assert export_line(tmp_path, {"PATH": "/usr/bin"}) is None
