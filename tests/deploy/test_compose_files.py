"""deploy/compose, as far as it can be checked without a Docker engine."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from gateway.cli.app import build_app
from gateway.main import build_toolbox
from gateway.settings import Settings
from gateway.wire.parsed_policy import parse
from tests.deploy.dockerfile import REPOSITORY, stages

FOLDER = REPOSITORY / "deploy" / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
README = (FOLDER / "README.md").read_text()
POLICY = (FOLDER / "policy.example.yaml").read_text()

# Of the Compose specification's service attributes, those this file uses.
KNOWN = {
    "build",
    "cap_drop",
    "command",
    "depends_on",
    "deploy",
    "environment",
    "healthcheck",
    "image",
    "ipc",
    "ports",
    "networks",
    "profiles",
    "read_only",
    "restart",
    "secrets",
    "security_opt",
    "stop_grace_period",
    "tmpfs",
    "volumes",
}
LISTS = (
    *("cap_drop", "networks", "ports", "profiles", "secrets", "security_opt", "tmpfs"),
    "volumes",
)
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}


def test_the_services_use_known_attributes_of_the_right_shape() -> None:
    """Compose refuses the whole file for one misspelt attribute."""
    assert set(COMPOSE) == {
        "name",
        "x-gateway-login",
        "x-reports-login",
        "x-admin-login",
        "x-finance-login",
        "x-mail",
        "x-hardened",
        "services",
        "secrets",
        "networks",
        "volumes",
    }
    for name, service in SERVICES.items():
        assert set(service) <= KNOWN, name
        assert all(isinstance(service[key], list) for key in LISTS if key in service), name
        assert isinstance(service.get("environment", {}), dict), name
        assert {"test"} <= set(service.get("healthcheck", {"test": []})), name


def test_every_dependency_of_a_service_exists_and_can_start() -> None:
    """Waiting for the health of a service without a health check never ends."""
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] in CONDITIONS, name
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[other], (
                name,
                other,
            )
            assert (
                how["condition"] != "service_completed_successfully"
                or SERVICES[other]["restart"] == "no"
            ), other


def test_every_named_volume_is_declared_and_used() -> None:
    """A volume that is not declared is an error; one that is not used holds somebody's lost
    data.
    """
    named = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", ())
    }
    assert named == set(COMPOSE["volumes"])


def test_ports_are_published_on_loopback_only() -> None:
    """Docker publishes past the host's firewall: without an address the whole network may read the
    metrics.
    """
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert [port for port in published if not str(port).startswith("127.0.0.1:")] == []


def test_a_published_port_is_one_its_image_listens_on() -> None:
    """A port published into nothing looks like a gateway that is down."""
    settings = Settings.model_fields
    listened = {
        "gateway": {settings["port"].default, settings["metrics_port"].default},
        "dashboard": {settings["dashboard_port"].default},
    }
    for name, ports in listened.items():
        assert {int(port.rpartition(":")[2]) for port in SERVICES[name]["ports"]} == ports
        (exposed,) = (line.split()[1:] for line in stages()[name] if line.startswith("EXPOSE "))
        assert {int(port) for port in exposed} == ports


def test_no_secret_stands_in_a_file() -> None:
    """Committed text is public: secrets come from the environment, and have no default."""
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if name.endswith("_FILE"):
                assert str(value).removeprefix("/run/secrets/") in service["secrets"], name
            elif re.search(r"PASSWORD|KEY|SECRET|TOKEN|URL", name):
                assert re.search(r"\$\{[A-Z_]+(:\?[^}]+|:-)\}", str(value)), name
    settings = [
        line for line in (FOLDER / ".env.example").read_text().splitlines() if "PASSWORD=" in line
    ]
    logins = ("POSTGRES", "GATEWAY", "REPORTS", "ADMIN", "FINANCE")
    assert settings == [f"{name}_PASSWORD=" for name in logins]
    for file in FOLDER.iterdir():
        if file.is_file() and file.name != ".env":
            assert (
                re.search(
                    r"sk-[A-Za-z0-9]{8}|tg_[A-Za-z0-9]{8}|BEGIN [A-Z ]*PRIVATE", file.read_text()
                )
                is None
            ), file


@pytest.mark.parametrize(
    ("values", "server"),
    [
        ({}, None),
        (
            {"SMTP_URL": "smtp://ops@mail.example", "SMTP_FROM": "tollgate@example.com"},
            "mail.example",
        ),
    ],
)
def test_the_values_of_mail_are_settings_of_the_gateway(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], server: str | None
) -> None:
    """Also while they are empty: a gateway without mail must start."""
    for name in ("gateway", "admin"):
        written = SERVICES[name]["environment"]
        given = {key: written[key] for key in written if "_SMTP_" in key}
        assert set(given) == {f"TOLLGATE_SMTP_{one}" for one in ("URL", "FROM", "PASSWORD_FILE")}
        for key, value in given.items():
            filled = re.sub(r"\$\{([A-Z_]+):-\}", lambda one: values.get(one[1], ""), value)
            monkeypatch.setenv(key, filled)
        account = Settings().mail_account
        assert (None if account is None else account.server.host) == server
        assert account is None or account.password == "file:/run/secrets/smtp_password"
    assert COMPOSE["secrets"]["smtp_password"]["file"] == "${SMTP_PASSWORD_FILE:-/dev/null}"


def test_the_readme_needs_no_secret_that_git_would_take() -> None:
    """The README says to copy .env.example to .env; git must never see the copy."""
    done = subprocess.run(
        ["git", "check-ignore", "deploy/compose/.env"], cwd=REPOSITORY, check=False
    )
    assert done.returncode in (0, 128)  # 128: this is no git checkout
    assert ".env" in (REPOSITORY / ".gitignore").read_text().splitlines()


def test_every_image_is_pinned() -> None:
    """A tag that moves gives two machines two products, and a Postgres that does not read its own
    data.
    """
    built = {service["image"] for service in SERVICES.values() if "build" in service}
    pulled = {service["image"] for service in SERVICES.values()} - built
    bases = {
        line.split()[1] for lines in stages().values() for line in lines if line.startswith("FROM ")
    }
    for image in (pulled | bases) - set(stages()):
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+(\.\d+)?(-[a-z-]+)?", image), image
    version = re.search(r'^version = "([^"]+)"', (REPOSITORY / "pyproject.toml").read_text(), re.M)
    assert version is not None
    assert built == {f"tollgate-gateway:{version[1]}", f"tollgate-dashboard:{version[1]}"}


def test_the_engine_is_the_version_that_this_product_locks() -> None:
    """The flags and the metering were checked with one version of vLLM."""
    locked = re.search(
        r"^vllm==(\S+)", (REPOSITORY / "engine" / "locks" / "gpu-3.11.lock").read_text(), re.M
    )
    assert locked is not None
    assert SERVICES["engine"]["image"] == f"vllm/vllm-openai:v{locked[1]}"


def test_every_build_names_a_stage_of_the_dockerfile() -> None:
    """A target that is not there fails only when somebody builds."""
    builds = [service["build"] for service in SERVICES.values() if "build" in service]
    assert {build["target"] for build in builds} == {"gateway", "dashboard"} <= set(stages())
    for build in builds:
        context = (FOLDER / build["context"]).resolve()
        assert context == REPOSITORY
        assert (context / build["dockerfile"]).is_file()


def test_every_path_that_the_dockerfile_copies_is_in_its_context() -> None:
    """The context leaves everything out except the paths that .dockerignore lets in again."""
    let_in = {
        line[1:]
        for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    for lines in stages().values():
        for line in lines:
            if line.startswith("COPY ") and "--from=" not in line:
                for source in line.split()[1:-1]:
                    assert (REPOSITORY / source).exists(), line
                    assert any(Path(source).match(pattern) for pattern in let_in), source


def test_nothing_runs_as_root_or_with_a_writable_root() -> None:
    """Whoever gets into a container finds nothing to change and nothing to become."""
    assert "USER tollgate" in stages()["base"]
    for name in ("migrate", "gateway", "dashboard", "admin", "finance"):
        assert stages()[SERVICES[name]["build"]["target"]][0].startswith("FROM base ")
        assert SERVICES[name]["read_only"] is True
        assert SERVICES[name]["cap_drop"] == ["ALL"]


def test_only_the_migration_is_the_owner() -> None:
    """Security F9: all services were, so an attacker in the dashboard could change booked
    events.
    """
    addresses = {
        name: {key for key in service.get("environment", {}) if key.endswith("DATABASE_URL")}
        for name, service in SERVICES.items()
    }
    gateway, reports, admin, finance = (
        f"TOLLGATE_{name}_DATABASE_URL" for name in ("GATEWAY", "REPORTS", "ADMIN", "FINANCE")
    )
    assert addresses == {
        "postgres": set(),
        "engine": set(),
        "migrate": {"TOLLGATE_DATABASE_URL", gateway, reports, admin, finance},
        "gateway": {gateway, reports},
        "dashboard": {reports},
        "admin": {admin, reports},
        "finance": {finance, reports},
    }


def test_the_engine_meets_the_gateway_alone() -> None:
    """Security F9: it has no key, and the dashboard was on its network."""
    neighbours = [
        name for name, service in SERVICES.items() if set(service["networks"]) & {"engines"}
    ]
    assert sorted(neighbours) == ["engine", "gateway"]
    assert {name for service in SERVICES.values() for name in service["networks"]} == set(
        COMPOSE["networks"]
    )


def test_the_policy_example_is_accepted() -> None:
    """It is the first policy of whoever follows the README."""
    read = parse(POLICY)
    assert set(read.policy.teams) >= set(re.findall(r"key create (\w+)", README))


def test_the_policy_calls_the_engine_as_compose_does() -> None:
    """The service's name is its host name; its port is vLLM's own."""
    engine = parse(POLICY).policy.deployments["engine"]
    assert engine.base_url == "http://engine:8000/v1"
    command = SERVICES["engine"]["command"]
    assert f"--served-model-name {engine.model} " in command
    assert f"--max-model-len {engine.context_window} " in command


@pytest.mark.parametrize(
    "arguments", re.findall(r"`tollgate ([a-z -]+)`| admin ((?:policy|key) .+)", README)
)
def test_every_command_of_the_readme_exists(arguments: tuple[str, str], tmp_path: Path) -> None:
    """Commands get renamed; the README must follow."""
    _resolve(shlex.split(arguments[0] or arguments[1]), tmp_path)


@pytest.mark.parametrize("name", ["migrate", "dashboard", "finance"])
def test_every_command_of_the_compose_file_exists(name: str, tmp_path: Path) -> None:
    """As above."""
    _resolve(SERVICES[name]["command"], tmp_path)


def _resolve(words: list[str], home: Path) -> None:
    """Walk the command line's tree; fail if a word names no command or an option does not exist."""
    command: Any = get_command(build_app(build_toolbox(Settings(home=home))))
    rest = list(words)
    while rest and hasattr(command, "commands"):
        name = rest.pop(0)
        assert name in command.commands, f"tollgate {' '.join(words)}: there is no {name}"
        command = command.commands[name]
    assert not hasattr(command, "commands"), f"tollgate {' '.join(words)} is not a whole command"
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= options, words
