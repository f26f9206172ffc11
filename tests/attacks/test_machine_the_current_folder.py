"""A child that is started by a module's name looks into the current folder first: whoever may write
there ran code as the operator, with finance's login, and signed people in.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.serving.statements import CHILD
from tests.attacks.test_security_f10_a_page_reads_the_dashboard import status
from tests.bare_environment import BARE
from tests.dashboard.raw_visitor import signed_in_cookie
from tests.gateway_process import free_port
from tests.waiting import eventually

REPOSITORY = Path(__file__).parents[2]
SAFE = {"-P", "-I"}
# The modules that children are started by, those that they import first, and those of the library
# that starts processes.
PLANTED = (
    *("dashboard/__init__", "dashboard/__main__", "engine/__init__", "engine/__main__"),
    *("gateway/__init__", "gateway/main", "streamlit", "multiprocessing", "msgspec", "psycopg"),
)


def sequences(tree: ast.AST) -> Iterator[list[ast.expr]]:
    """Yield the members of each list and tuple, with unpacked ones in their place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            yield [one for part in node.elts for one in unpacked(part)]


def unpacked(part: ast.expr) -> list[ast.expr]:
    """Return the members of an unpacked tuple, or the expression itself."""
    if isinstance(part, ast.Starred) and isinstance(part.value, ast.Tuple | ast.List):
        return part.value.elts
    return [part]


def is_unsafe(members: list[ast.expr]) -> bool:
    """Return True for a command that runs a module or a text by Python, and looks into the current
    folder: `-m` anywhere, `-c` behind a program, or our interpreter without an option.
    """
    words = [one.value if isinstance(one, ast.Constant) else None for one in members]
    runs = [at for at, word in enumerate(words) if word in ("-m", "-c") and at > 0]
    return bool(runs) and not SAFE & set(words[: runs[0]])


@pytest.mark.parametrize("package", ["gateway", "engine", "dashboard"])
def test_no_child_looks_into_the_current_folder(package: str) -> None:
    """A new child is safe by this rule, not by its author's memory."""
    found = [
        f"{path.relative_to(REPOSITORY)}:{members[0].lineno}"
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        for members in sequences(ast.parse(path.read_text()))
        if is_unsafe(members)
    ]
    assert found == []


def test_the_rule_sees_each_form() -> None:
    """A rule that sees nothing finds nothing."""
    unsafe = (
        '[sys.executable, "-m", "engine"]',
        '(*(sys.executable, "-m", "dashboard"), "x")',
        '[python.path, "-c", PROBE]',
        '[str(home.python), "-u", "-m", "pip"]',
    )
    safe = (
        '[sys.executable, "-P", "-m", "engine"]',
        '[python.path, "-I", "-c", PROBE]',
        '[sys.executable, str(FOLDER / "guard.py")]',
        '("-c", f"{name}={value}")',
    )
    assert [any(map(is_unsafe, sequences(ast.parse(one)))) for one in unsafe] == [True] * 4
    assert [any(map(is_unsafe, sequences(ast.parse(one)))) for one in safe] == [False] * 4


def test_pools_of_processes_are_safe_too() -> None:
    """`multiprocessing` starts its children by `-c`, and takes no options."""
    pools = [
        path
        for package in ("gateway", "engine", "dashboard")
        for path in (REPOSITORY / package).rglob("*.py")
        if "ProcessPoolExecutor(" in (text := path.read_text()) or "multiprocessing" in text
    ]
    assert pools
    assert [path for path in pools if "PYTHONSAFEPATH" not in path.read_text()] == []


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder with a module of each name, which leaves a mark and ends."""
    folder = tmp_path / "hostile"
    for name in PLANTED:
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write(__file__)\nraise SystemExit(77)\n"
        )
    return folder


def variables(home: Path, database_url: str = "") -> dict[str, str]:
    """Return the variables of a command with its own home."""
    kept = {**BARE, "HOME": str(home), "TOLLGATE_HOME": str(home / "tollgate")}
    return kept | ({"TOLLGATE_DATABASE_URL": database_url} if database_url else {})


@pytest.mark.parametrize(
    "argv",
    [
        (sys.executable, "-P", "-m", "gateway.main", "engine", "plan", "--help"),
        (sys.executable, "-P", "-m", "gateway.main", "doctor", "--format", "json"),
        CHILD,
    ],
)
def test_commands_run_our_code_in_a_hostile_folder(
    argv: tuple[str, ...], hostile: Path, tmp_path: Path
) -> None:
    """No hostile intent is needed: a project with a folder `engine` broke the command."""
    done = subprocess.run(
        argv,
        cwd=hostile,
        env=variables(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 77
    assert not (tmp_path / "ran").exists()


OPERATOR, FOREIGN = "o" * 64, "f" * 64


def auth(cookie_secret: str) -> str:
    """Return Streamlit's secrets for a provider that is never asked."""
    return (
        '[auth]\nredirect_uri = "http://127.0.0.1:1/oauth2callback"\n'
        f'cookie_secret = "{cookie_secret}"\nclient_id = "c"\nclient_secret = "s"\n'
        'server_metadata_url = "http://127.0.0.1:1/.well-known/openid-configuration"\n'
    )


def write_secrets(folder: Path, cookie_secret: str) -> None:
    """Set sign-in up in a folder."""
    place = folder / ".streamlit"
    place.mkdir(parents=True, exist_ok=True)
    (place / "secrets.toml").write_text(auth(cookie_secret))
    (place / "secrets.toml").chmod(0o600)


def is_known(port: int, cookie_secret: str) -> bool:
    """Return True if a cookie that this secret signed is a sign-in: a missing file is then 404."""
    found = status(port, "/media/none", "localhost", cookie=signed_in_cookie(cookie_secret))
    assert found in (403, 404)
    return found == 404


def test_the_dashboard_reads_the_operators_secrets_alone(
    hostile: Path, tmp_path: Path, database_url: str
) -> None:
    """A cookie signed by the folder's secret opened finance's page."""
    write_secrets(tmp_path, OPERATOR)
    write_secrets(hostile, FOREIGN)
    port = free_port()
    argv = [sys.executable, "-P", "-m", "gateway.main", "dashboard"]
    environment = variables(tmp_path, database_url) | {"TOLLGATE_DASHBOARD_PORT": str(port)}
    with subprocess.Popen(argv, cwd=hostile, env=environment, stderr=subprocess.PIPE) as command:
        try:
            eventually(
                lambda: status(port, "/_stcore/health", "localhost") == 200,
                "the dashboard",
                within_s=120,
            )
            assert [is_known(port, secret) for secret in (OPERATOR, FOREIGN)] == [True, False]
        finally:
            command.terminate()
            assert command.stderr is not None
            said = command.stderr.read().decode()
    assert f"{hostile / '.streamlit' / 'secrets.toml'} is not read" in said
    assert not (tmp_path / "ran").exists()
