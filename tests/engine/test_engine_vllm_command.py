"""The command line and environment of vLLM."""

import socket
from pathlib import Path

import pytest
from engine_factories import a_home, a_serving

from engine import model_making, vllm_command
from engine.errors import UsageError
from engine.serving import addresses


def test_a_cpu_chat_engine_gets_the_metering_and_parser_flags(tmp_path: Path) -> None:
    """Each flag has a reason in `vllm_command`; without prompt token details, cached tokens are
    billed in full.
    """
    home = a_home(tmp_path)
    assert vllm_command.command(home, a_serving())[2:] == [
        "serve",
        str(model_making.TINY),
        *(
            "--served-model-name",
            "tiny",
            "--host",
            "127.0.0.1",
            "--port",
            "8001",
            "--max-model-len",
            "4096",
        ),
        *(
            "--enable-prompt-tokens-details",
            "--enable-per-request-metrics",
            "--enable-request-id-headers",
        ),
        *("--max-num-queued-reqs", "256", "--shutdown-timeout", "20"),
        *(
            "--reasoning-parser",
            "qwen3",
            "--enable-auto-tool-choice",
            "--tool-call-parser",
            "hermes",
        ),
        "--enforce-eager",
    ]


def test_a_pooling_engine_gets_no_chat_flags(tmp_path: Path) -> None:
    """A pooling server answers /v1/embeddings and knows no tools."""
    argv = vllm_command.command(a_home(tmp_path), a_serving(runner="pooling"))
    assert tuple(argv[argv.index("--runner") :][:2]) == ("--runner", "pooling")
    assert "--reasoning-parser" not in argv
    assert "--enable-auto-tool-choice" not in argv


def test_a_gpu_engine_compiles(tmp_path: Path) -> None:
    """Eager mode is a saving on two cores and a loss on a GPU."""
    home = a_home(tmp_path)
    assert "--enforce-eager" not in vllm_command.command(home, a_serving(device="gpu"))
    assert "VLLM_CPU_KVCACHE_SPACE" not in vllm_command.environment(
        home, a_serving(device="gpu"), {}
    )


def test_the_tiny_model_is_served_by_one_thread_and_a_larger_one_as_vllm_likes(
    tmp_path: Path,
) -> None:
    """On two cores its threads only wait for each other, and hold up the gateway beside them."""
    home = a_home(tmp_path)
    calm = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
    assert calm.items() <= vllm_command.environment(home, a_serving(), {}).items()
    assert (
        vllm_command.environment(home, a_serving(), {"OMP_NUM_THREADS": "2"})["OMP_NUM_THREADS"]
        == "2"
    )
    for other in (a_serving(model="mine"), a_serving(model="org/name"), a_serving(device="gpu")):
        assert not calm.keys() & vllm_command.environment(home, other, {}).keys()


def test_ranks_talk_on_this_machine_alone_and_need_their_processes(tmp_path: Path) -> None:
    """Their channels have no password; and one process cannot hold several ranks."""
    given = vllm_command.environment(a_home(tmp_path), a_serving(has_ranks=True), {})
    assert given["VLLM_HOST_IP"] == "127.0.0.1"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in given


def test_another_program_is_run_in_place_of_vllm(tmp_path: Path) -> None:
    """It gets the same arguments, and its model needs no weights."""
    argv = vllm_command.command(a_home(tmp_path), a_serving(program=Path("/opt/vllm")))
    assert argv[:3] == ["/opt/vllm", "serve", str(model_making.TINY)]


def test_extra_arguments_come_last(tmp_path: Path) -> None:
    """The last of two equal flags wins in vLLM, so the user's flags must stand behind ours."""
    assert vllm_command.command(a_home(tmp_path), a_serving(extra=("--seed", "7")))[-2:] == [
        "--seed",
        "7",
    ]


def test_parsers_can_be_left_out(tmp_path: Path) -> None:
    """Other models think and call tools in other forms, or not at all."""
    argv = vllm_command.command(
        a_home(tmp_path), a_serving(reasoning_parser="none", tool_call_parser="none")
    )
    assert not {"--reasoning-parser", "--tool-call-parser", "--enable-auto-tool-choice"} & set(argv)


def test_a_local_model_is_served_offline_and_a_hub_model_is_not(tmp_path: Path) -> None:
    """A local folder needs no hub; asking it anyway hangs without a network."""
    home = a_home(tmp_path)
    assert vllm_command.environment(home, a_serving(), {})["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in vllm_command.environment(home, a_serving(model="org/name"), {})
    assert vllm_command.default_name(home, "org/name") == "org/name"


def test_the_key_is_in_the_environment_and_not_in_the_command_line(tmp_path: Path) -> None:
    """Every user of a machine can read every command line."""
    home, key_file = a_home(tmp_path), tmp_path / "key"
    key_file.write_text(" sk-engine \n", encoding="utf-8")
    serving = a_serving(api_key_file=key_file)
    assert (
        vllm_command.environment(home, serving, {"VLLM_API_KEY": "older"})["VLLM_API_KEY"]
        == "sk-engine"
    )
    assert "sk-engine" not in " ".join(vllm_command.command(home, serving))


def test_tollgates_own_settings_do_not_reach_vllm(tmp_path: Path) -> None:
    """They hold the ledger's address; a model server has no business with it."""
    inherited = {"TOLLGATE_DATABASE_URL": "postgresql://…", "VLLM_CPU_KVCACHE_SPACE": "4"}
    given = vllm_command.environment(a_home(tmp_path), a_serving(), inherited)
    assert "TOLLGATE_DATABASE_URL" not in given
    assert given["VLLM_CPU_KVCACHE_SPACE"] == "4"


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_missing_or_empty_key_file_is_bad_usage(tmp_path: Path, content: str | None) -> None:
    """An engine that starts without its required key is open."""
    if content is not None:
        (tmp_path / "key").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match="--api-key-file"):
        vllm_command.read_key(tmp_path / "key")


@pytest.mark.parametrize("name", ["absent", "./absent", "/absent/model", "~/absent"])
def test_a_missing_local_model_names_the_one_that_is_shipped(tmp_path: Path, name: str) -> None:
    """A newcomer who mistypes needs a name that works."""
    with pytest.raises(UsageError, match="is called tiny"):
        vllm_command.model_path(a_home(tmp_path, model=None), name)


def test_tiny_is_the_shipped_model_whatever_the_home_holds(tmp_path: Path) -> None:
    """A home of an earlier release holds a `tiny` trained there, which may fail its exam in
    float32.
    """
    assert vllm_command.model_path(a_home(tmp_path, model="tiny"), "tiny") == model_making.TINY
    assert vllm_command.default_name(a_home(tmp_path / "empty", model=None), "tiny") == "tiny"
    home = a_home(tmp_path / "own", model="mine")
    assert vllm_command.model_path(home, "mine") == home.models / "mine"


def test_a_taken_port_names_both_ways_to_choose_another() -> None:
    """vLLM would find out after loading the model, in forty lines."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            UsageError, match=rf"127\.0\.0\.1:{port} is in use.*--port.*TOLLGATE_ENGINE_PORT"
        ):
            addresses.require_free("127.0.0.1", port)
    addresses.require_free("127.0.0.1", port)
