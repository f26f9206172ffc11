"""Rules that only the source itself can show: one transport, one maker of permits, every feature
documented.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from gateway.domain.policy.request_fields import FEATURE_OF_MEMBER, FEATURES

ROOT = Path(__file__).parents[2]
MOST_FILES = 18


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    """Every module with its tree, parsed once: it takes seconds."""
    return tuple(
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text()))
        for package in ("gateway", "engine", "dashboard")
        for path in sorted((ROOT / package).rglob("*.py"))
    )


@cache
def nodes() -> tuple[tuple[str, tuple[ast.AST, ...]], ...]:
    """Every module with all nodes of its tree, walked once: it takes a second."""
    return tuple((path, tuple(ast.walk(tree))) for path, tree in sources())


def calls_of(name: str) -> list[str]:
    """Return the calls of `name(...)` or `x.name(...)`."""
    found = []
    for path, within in nodes():
        for node in within:
            if isinstance(node, ast.Call):
                called = node.func
                last = (
                    called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                )
                if last == name:
                    found.append(path)
    return found


def importers_of(package: str) -> list[str]:
    found = []
    for path, within in nodes():
        for node in within:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            if any(name.partition(".")[0] == package for name in names):
                found.append(path)
    return sorted(set(found))


def importers_below(package: str) -> list[str]:
    """Who imports a package of ours or anything in it."""
    found = []
    for path, within in nodes():
        for node in within:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if any(f"{name}.".startswith(f"{package}.") for name in names):
                found.append(path)
    return sorted(set(found))


def needs() -> dict[str, set[str]]:
    """Return the modules that each module imports, for its types alone too."""
    modules = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): within
        for path, within in nodes()
    }
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, within in modules.items():
        for node in within:
            if isinstance(node, ast.ImportFrom) and node.module:
                named = [f"{node.module}.{alias.name}" for alias in node.names]
                found[name] |= {one if one in modules else node.module for one in named}
    return found


def test_no_module_needs_itself_through_others() -> None:
    """A circle can only be read as a whole, and import-linter does not see one of types."""
    TopologicalSorter(needs()).prepare()  # raises the circle


def test_a_folder_has_few_files_and_a_sign() -> None:
    """A newcomer looks for a concern, not through a long list; the package's docstring names its
    content.
    """
    folders: dict[str, list[str]] = {}
    for path, tree in sources():
        folder, _, name = path.rpartition("/")
        folders.setdefault(folder, []).append(name)
        if name == "__init__.py":
            assert ast.get_docstring(tree), f"{path} does not say what its package is for"
    assert {
        folder: len(names) for folder, names in folders.items() if len(names) > MOST_FILES
    } == {}


def test_the_name_of_a_test_module_stands_in_one_folder() -> None:
    """Without a package around them they share one namespace: the second is not collected by a
    worker that has imported the first.
    """
    found = [
        path.name
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if not (path.parent / "__init__.py").exists()
    ]
    assert [name for name, count in Counter(found).items() if count > 1] == []


def test_the_name_of_a_class_stands_in_one_module() -> None:
    """Of two classes with one name each is taken for the other."""
    homes: dict[str, list[str]] = {}
    for path, tree in sources():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_a_permit_is_made_in_one_place() -> None:
    """Only the decision permits sending a request: a second maker would be a second policy.

    The other one is for probes of self-hosted engines, and its maker sees no request at all.
    """
    assert calls_of("Permit") == [
        "gateway/domain/routing/decide.py",
        "gateway/domain/routing/probe_permit.py",
    ]
    assert calls_of("probe_permit") == ["gateway/services/deployments/engine_probes.py"]
    trees = dict(sources())
    for path in (
        "gateway/domain/routing/probe_permit.py",
        "gateway/services/deployments/engine_probes.py",
    ):
        named = {node.id for node in ast.walk(trees[path]) if isinstance(node, ast.Name)}
        assert not named & {"Request", "RequestBody", "Decision", "Ask"}, path


def test_a_probe_has_fixed_content() -> None:
    """The content of a probe is written in the source: it can contain no caller's data."""
    function = next(
        node
        for node in ast.walk(dict(sources())["gateway/providers/openai.py"])
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "probe"
    )
    assert [argument.arg for argument in function.args.args] == ["self", "deployment", "probe_id"]
    assert calls_of("probe") == ["gateway/services/deployments/engine_probes.py"]


def test_no_permit_is_changed_into_another() -> None:
    """`replace` of `msgspec.structs`, by any path, would make a permit without its decision."""
    for path, within in nodes():
        if "Permit" not in (ROOT / path).read_text() or path in (
            "gateway/domain/routing/decide.py",
            "gateway/domain/routing/probe_permit.py",
        ):
            continue
        called = {ast.unparse(node.func) for node in within if isinstance(node, ast.Call)}
        assert not called & {
            "replace",
            "copy.replace",
            "structs.replace",
            "msgspec.structs.replace",
        }, path


def test_an_error_of_an_upstream_is_made_in_one_place() -> None:
    """A provider's error may repeat the gateway's key. One function takes the key out of it."""
    makers = {
        path
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "error"
        and "body" in {keyword.arg for keyword in node.keywords}
        and path.startswith("gateway/services/")
    }
    assert makers == {"gateway/services/upstream_error.py"}


def test_content_leaves_through_one_module() -> None:
    """The transport alone imports the HTTP client for content, so that no other way out can be
    overlooked.
    """
    # The callers' side parses requests with the same library; the modules that open connections are
    # listed below.
    assert importers_of("httptools") == [
        "gateway/api/http/connection.py",
        "gateway/api/http/parser.py",
        "gateway/providers/http1/answer.py",
    ]
    assert importers_of("aiohappyeyeballs") == ["gateway/providers/http1/pool.py"]
    own = [path for path in importers_below("gateway.providers.http1") if "/http1/" not in path]
    assert own == ["gateway/providers/transport.py"]
    # The doctor's connections carry no content.
    assert set(calls_of("create_connection")) == {
        "gateway/cli/checks/connections.py",
        "gateway/providers/http1/pool.py",
    }
    # The engine's load is drawn from a list of words: no caller's content.
    assert set(calls_of("open_connection")) == {"engine/load/client.py"}
    # The webhook's alerts and the calls of the command line carry no content.
    serving = [path for path in importers_of("httpx2") if not path.startswith("gateway/cli/")]
    assert serving == ["gateway/providers/alerts/webhook.py"]
    assert importers_of("smtplib") == ["gateway/providers/alerts/mail.py"]
    assert (
        list(
            importers_of("aiohttp")
            + importers_of("requests")
            + importers_of("httpx")
            + importers_of("urllib3")
        )
        == []
    )


def test_the_http_client_stands_alone() -> None:
    """Importing it must run no other module of ours, so that it can be fuzzed without a gateway."""
    listed = (
        "import sys, gateway.providers.http1.pool; "
        "print(*sorted(name for name in sys.modules if name.startswith('gateway')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", listed], cwd=ROOT, capture_output=True, text=True, check=True
    )
    client = "gateway.providers.http1"
    others = [name for name in done.stdout.split() if not name.startswith(client)]
    assert others == ["gateway", "gateway.providers"]


def test_few_places_read_the_wall_clock() -> None:
    """All other code takes its moment as an argument, so that `tests/days` can move it. The places
    listed date a log line, a header, a token or a page.
    """
    readers = {
        path
        for path, within in nodes()
        for node in within
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr)
        in {("datetime", "now"), ("date", "today"), ("time", "time"), ("time", "time_ns")}
    }
    assert readers == {
        "dashboard/access.py",
        "dashboard/shell/period.py",
        "dashboard/source.py",
        "gateway/api/forward.py",
        "gateway/main.py",
        "gateway/providers/registry.py",
        "gateway/telemetry/logs.py",
    }


def test_nothing_turns_certificate_checks_off() -> None:
    """TLS verification has no switch, not even an unused one."""
    for path, within in nodes():
        for node in within:
            if isinstance(node, ast.keyword) and node.arg in (
                "ssl",
                "verify",
                "verify_ssl",
                "check_hostname",
            ):
                assert not (isinstance(node.value, ast.Constant) and node.value.value is False), (
                    path
                )


def test_every_field_that_needs_leave_belongs_to_a_feature() -> None:
    """The table of fields and the table of features are one table."""
    assert set(FEATURE_OF_MEMBER.values()) <= set(FEATURES)
    for member, feature in FEATURE_OF_MEMBER.items():
        assert member in FEATURES[feature].members
    assert all(name == feature.name for name, feature in FEATURES.items())


def test_a_wheel_holds_only_the_running_packages() -> None:
    """One edit of both lists of packages in pyproject.toml once put the benchmarks into the
    wheel.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == ["gateway", "engine", "dashboard", "migrations"]


def test_a_wheel_holds_the_files_that_make_the_database() -> None:
    """Only a checkout had them otherwise, and an installed gateway could make no database."""
    packed = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "migrations/baseline").iterdir()}
    assert files
    assert {*files, "migrations/rights.tsv"} <= packed
