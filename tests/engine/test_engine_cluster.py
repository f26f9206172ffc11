"""`engine serve --cluster`: the refusal to start on an open network, and the configuration that Ray
Serve LLM gets from a profile. Ray itself runs in `bench/two_nodes.py`.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from engine_factories import REPOSITORY, a_home, python_variables
from test_engine_environment import hashes_of, pins

from engine import home as homes
from engine.cluster.ray_packages import ray_lock
from engine.cluster.serve import cluster_plan
from engine.command_line import parser
from engine.environment import LOCKED_PYTHONS, STACKS, Device
from engine.serving.deployment_block import DeploymentFacts, deployment_block
from engine.serving.profile import KEYS

CPU = {"device": "cpu", "max_model_len": 2048, "max_num_seqs": 8, "max_num_batched_tokens": 512}


def serve(
    folder: Path, profile: dict[str, Any], *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `engine serve --cluster` with a profile; no environment of the engine exists."""
    file = folder / "profile.yaml"
    file.write_text(yaml.safe_dump(profile))
    given = python_variables() | {"TOLLGATE_ENGINE_HOME": str(folder / "absent"), **variables}
    program = (sys.executable, "-m", "engine", "serve", "--cluster", "--model", "tiny")
    return subprocess.run(
        [*program, "--profile", str(file), *arguments],
        cwd=REPOSITORY,
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )


def dry_run(
    folder: Path, profile: dict[str, Any], *arguments: str, **variables: str
) -> dict[str, Any]:
    """Return the output of `--dry-run`, without the second that a process takes to start."""
    file = folder / "profile.yaml"
    file.write_text(yaml.safe_dump(profile))
    line = ["serve", "--cluster", "--model", "tiny", "--profile", str(file), *arguments]
    plan = cluster_plan(a_home(folder / "absent", model=None), parser().parse_args(line), variables)
    shown: dict[str, Any] = json.loads(plan.shown("json"))
    return shown


def test_it_does_not_start_without_the_word_that_the_network_is_closed(tmp_path: Path) -> None:
    """Whoever reaches a port of Ray runs code as its user, on every machine of the cluster."""
    done = serve(tmp_path, CPU)
    assert done.returncode == 2
    assert "Nothing was started" in done.stderr
    assert "--closed-network" in done.stderr
    assert "without a password" in done.stderr
    assert done.stdout == ""


def test_without_ray_it_names_the_setup(tmp_path: Path) -> None:
    """Ray is no part of `engine setup`, so the first start is the place to learn about it."""
    done = serve(tmp_path, CPU, "--closed-network")
    assert done.returncode == 2
    assert "engine setup --cluster" in done.stderr


def test_the_confirmation_means_nothing_on_one_machine() -> None:
    """An option that is ignored would look like a setting."""
    argv = [sys.executable, "-m", "engine", "serve", "--closed-network", "--dry-run"]
    done = subprocess.run(argv, cwd=REPOSITORY, env=python_variables(), capture_output=True)
    assert done.returncode == 2


def test_each_key_of_a_profile_reaches_ray(tmp_path: Path) -> None:
    """The names are vLLM's own; Ray refuses an argument that neither of vLLM's classes has."""
    profile = CPU | {
        "dtype": "bfloat16",
        "chunked_prefill": True,
        "prefix_caching": False,
        "kv_cache_dtype": "fp8",
        "data_parallel_size": 3,
        "speculative": {"method": "ngram", "tokens": 4},
        "reasoning_parser": "qwen3",
        "tool_call_parser": "hermes",
        "max_num_queued_reqs": 64,
    }
    shown = dry_run(tmp_path, profile, RAY_ADDRESS="10.1.2.3:6379")
    (llm,) = shown["ray_serve"]["app"]["llm_configs"]
    expected = {
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "max_num_queued_reqs": 64,
        "dtype": "bfloat16",
        "enable_chunked_prefill": True,
        "enable_prefix_caching": False,
        "kv_cache_dtype": "fp8",
        "reasoning_parser": "qwen3",
        "tool_call_parser": "hermes",
        "enable_auto_tool_choice": True,
        "enforce_eager": True,
        "enable_prompt_tokens_details": True,
        "enable_per_request_metrics": True,
    }
    kwargs = llm["engine_kwargs"]
    assert kwargs.pop("speculative_config")["num_speculative_tokens"] == 4
    assert kwargs == expected
    assert shown["ray_serve"]["address"] == "10.1.2.3:6379"
    assert llm["deployment_config"]["num_replicas"] == 3
    assert shown["ray_serve"]["app"]["ingress_deployment_config"] == {"num_replicas": 3}
    assert llm["placement_group_config"] == {"bundles": [{"CPU": 1}], "strategy": "STRICT_PACK"}
    assert llm["model_loading_config"]["model_source"] == str(homes.SHIPPED_MODELS / "tiny")
    tested = {*profile, "model", "quantization", "tensor_parallel_size", "pipeline_parallel_size"}
    assert {*KEYS, "speculative"} == tested, "a new key needs its place in ray_config.py"


def test_two_ingresses_stand_before_one_engine(tmp_path: Path) -> None:
    """With one, the death of its machine stopped every request for 18 s."""
    app = dry_run(tmp_path, CPU)["ray_serve"]["app"]
    assert app["ingress_deployment_config"] == {"num_replicas": 2}


def test_engines_get_vllms_variables_and_no_others(tmp_path: Path) -> None:
    """A secret would stand in a command line, and Ray shows it to whoever reaches the cluster."""
    secrets = dict.fromkeys(("TOLLGATE_PEPPER", "OPENAI_API_KEY", "HF_TOKEN", "VLLM_API_KEY"), "s")
    shown = dry_run(tmp_path, CPU, VLLM_CPU_OMP_THREADS_BIND="nobind", **secrets)
    variables = shown["ray_serve"]["app"]["llm_configs"][0]["runtime_env"]["env_vars"]
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert variables["VLLM_NO_USAGE_STATS"] == "1"
    assert variables.keys() & {*secrets, "PATH", "HOME"} == set()


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("--api-key-file", "key"), "--api-key-file"),
        (("--runner", "pooling"), "--runner"),
        (("--", "--seed", "1"), "--"),
    ],
)
def test_an_option_that_ray_cannot_honour_is_named(
    tmp_path: Path, arguments: tuple[str, ...], key: str
) -> None:
    """A key file that is silently ignored would leave an engine open."""
    (tmp_path / "key").write_text("k")
    given = tuple(str(tmp_path / "key") if one == "key" else one for one in arguments)
    shown = dry_run(tmp_path, CPU, *given)
    assert [item["key"] for item in shown["refused"]] == [key]


def test_another_program_in_place_of_vllm_is_refused(tmp_path: Path) -> None:
    """Ray Serve LLM would run the environment's vLLM, and no one would notice."""
    shown = dry_run(tmp_path, CPU, TOLLGATE_ENGINE_VLLM=sys.executable)
    assert [item["key"] for item in shown["refused"]] == ["TOLLGATE_ENGINE_VLLM"]


def test_a_key_that_cannot_be_served_is_named(tmp_path: Path) -> None:
    """The profile's own checks hold on a cluster, too, and nothing is started."""
    profile = CPU | {"max_model_len": 10**9, "tensor_parallel_size": 3}
    keys = {item["key"] for item in dry_run(tmp_path, profile)["refused"]}
    done = serve(tmp_path, profile, "--closed-network")
    assert (done.returncode, done.stdout) == (1, "")
    assert "max_model_len: 1000000000" in done.stderr
    assert {"max_model_len", "tensor_parallel_size"} <= keys


def test_the_block_says_what_ray_does_not_speak() -> None:
    """Ray Serve LLM has no `/v1/messages` and no `/v1/responses`; the gateway translates them."""
    facts = DeploymentFacts(
        url="http://10.77.0.1:8000",
        served_model_name="tiny",
        region="unknown",
        context_tokens=2048,
        api_key_file=None,
        is_pooling=False,
        has_tools=True,
        has_reasoning=False,
        native=("chat", "completions"),
    )
    (block,) = yaml.safe_load(deployment_block(facts))
    assert block["native"] == ["chat", "completions"]


@pytest.mark.parametrize("python", LOCKED_PYTHONS)
@pytest.mark.parametrize("device", list(STACKS))
def test_rays_lock_only_adds_to_the_environments(device: Device, python: str) -> None:
    """A package in both could replace the version that vLLM came with."""
    base = pins(STACKS[device].lock(python).read_text())
    text = ray_lock(device, python).read_text()
    added = pins(text)
    assert added["ray"] == "2.60.0"
    assert base.keys() & added.keys() == set()
    assert [name for name in added if not hashes_of(name, text)] == []
    assert "://" not in text
