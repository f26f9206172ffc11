"""Profiles: their keys, their translation into vLLM's flags, and the settings that cannot work."""

import ast
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_factories import REPOSITORY

from engine.errors import EngineError, UsageError
from engine.home import engine_home
from engine.plan.batch_limits import default_limits
from engine.plan.gpus import gpu_table
from engine.serving.checks import refusals
from engine.serving.flags import NUMBERS, SIZES, SWITCHES, profile_flags
from engine.serving.hardware import Hardware, InstalledGpu, gpus_in
from engine.serving.hardware_rules import hardware_rules, rule_for
from engine.serving.model_config import ModelFacts, facts_of, model_facts
from engine.serving.parsers import KNOWN, PLUGINS, parser_refusals
from engine.serving.profile import (
    KEYS,
    SHIPPED_PROFILES,
    SPECULATIVE,
    Profile,
    Speculation,
    parse_profile,
    read_profile,
    shipped_names,
)
from engine.vllm_command import MAX_QUEUED_REQUESTS

CPU_LIMITS = (128, 2048)
"""vLLM's default sequences and tokens of one CPU rank."""
VLLM = next(engine_home(os.environ).venv.glob("lib/python*/site-packages/vllm"), None)
AMX = frozenset({"avx2", "avx512f", "amx_tile", "avx512_bf16"})
AVX512 = frozenset({"avx2", "avx512f"})
AVX2 = frozenset({"avx2"})
PLAIN = ModelFacts(context_tokens=8192, attention_heads=4, head_dim=64, vocabulary=2048, layers=4)


def a_cpu(flags: frozenset[str] = AVX2, *, cores: int = 2) -> Hardware:
    return Hardware(device="cpu", cpu_flags=flags, cores=cores, numa_nodes=1)


def gpus(*capabilities: tuple[int, int]) -> Hardware:
    found = tuple(InstalledGpu(name="NVIDIA H200", capability=pair) for pair in capabilities)
    return Hardware(device="gpu", gpus=found)


def refused(profile: Profile, hardware: Hardware, model: ModelFacts = PLAIN) -> set[str]:
    """Return the keys that cannot be used."""
    return {item.key for item in refusals(profile, hardware, model)}


def read(text: str) -> tuple[Profile, dict[str, Any]]:
    """Return a profile and the values of its refused keys."""
    profile, found = parse_profile(text, source="mine.yaml")
    return profile, {item.key: item.value for item in found}


@pytest.mark.parametrize("name", ["cpu", "latency", "long-context", "throughput"])
def test_a_shipped_profile_serves_the_shipped_model_on_any_cpu(name: str) -> None:
    """A newcomer's first profile must not be refused."""
    given = read_profile(name)
    assert given.refused == ()
    tiny = model_facts(REPOSITORY / "engine" / "models" / "tiny")
    assert refusals(given.profile, a_cpu(), tiny) == ()
    assert name in shipped_names()


def test_every_key_is_read() -> None:
    """The keys are the contract of profiles."""
    profile, wrong = read("""
        model: /models/mine
        device: gpu
        dtype: bfloat16
        max_model_len: 8192
        max_num_seqs: 8
        max_num_batched_tokens: 1024
        chunked_prefill: false
        prefix_caching: true
        kv_cache_dtype: fp8
        quantization: awq
        tensor_parallel_size: 2
        pipeline_parallel_size: 3
        data_parallel_size: 4
        speculative: {method: draft, tokens: 5, model: /models/small}
        reasoning_parser: qwen3
        tool_call_parser: hermes
        max_num_queued_reqs: 64
    """)
    assert wrong == {}
    assert profile == Profile(
        model="/models/mine",
        device="gpu",
        dtype="bfloat16",
        max_model_len=8192,
        max_num_seqs=8,
        max_num_batched_tokens=1024,
        chunked_prefill=False,
        prefix_caching=True,
        kv_cache_dtype="fp8",
        quantization="awq",
        tensor_parallel_size=2,
        pipeline_parallel_size=3,
        data_parallel_size=4,
        speculative=Speculation(method="draft", tokens=5, model="/models/small"),
        reasoning_parser="qwen3",
        tool_call_parser="hermes",
        max_num_queued_reqs=64,
    )


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("max_seqs: 3", "max_seqs", 3),
        ("7: 3", "7", 3),
        ("device: tpu", "device", "tpu"),
        ("dtype: int4", "dtype", "int4"),
        ("max_model_len: 0", "max_model_len", 0),
        ("max_model_len: long", "max_model_len", "long"),
        ("max_num_seqs: many", "max_num_seqs", "many"),
        ("max_num_seqs: true", "max_num_seqs", True),
        ("max_num_seqs: 1.5", "max_num_seqs", 1.5),
        ("max_num_batched_tokens: -1", "max_num_batched_tokens", -1),
        ("chunked_prefill: 1", "chunked_prefill", 1),
        ("prefix_caching: sometimes", "prefix_caching", "sometimes"),
        ("kv_cache_dtype: int4", "kv_cache_dtype", "int4"),
        ("quantization: gguf", "quantization", "gguf"),
        ("tensor_parallel_size: 0", "tensor_parallel_size", 0),
        ("reasoning_parser: --port", "reasoning_parser", "--port"),
        ("tool_call_parser: two words", "tool_call_parser", "two words"),
        ("max_num_queued_reqs: []", "max_num_queued_reqs", []),
        ("speculative: ngram", "speculative", "ngram"),
        ("speculative: {method: medusa, tokens: 3}", "speculative.method", "medusa"),
        ("speculative: {method: ngram, tokens: 0}", "speculative.tokens", 0),
        ("speculative: {method: ngram}", "speculative.tokens", None),
        ("speculative: {method: eagle, tokens: 3}", "speculative.model", None),
        ("speculative: {method: ngram, tokens: 3, model: m}", "speculative.model", "m"),
        ("speculative: {method: ngram, tokens: 3, n: 2}", "speculative.n", 2),
    ],
)
def test_an_unknown_or_impossible_key_is_named_with_its_value(
    text: str, key: str, value: object
) -> None:
    """A key that is ignored is a setting that its author believes in."""
    assert read(text)[1] == {key: value}


def test_all_wrong_keys_are_named_at_once() -> None:
    """One run for each mistake would take an evening."""
    assert list(read("a: 1\nmax_num_seqs: 0\nspeculative: {b: 2}")[1]) == [
        "a",
        "max_num_seqs",
        "speculative.b",
        "speculative.method",
        "speculative.tokens",
    ]


@pytest.mark.parametrize("text", ["- a", "3", "a: [", "max_num_seqs: 1\nmax_num_seqs: 2"])
def test_a_file_that_is_no_mapping_of_different_keys_is_refused(text: str) -> None:
    """Of two values of one key YAML itself would keep the last, in silence."""
    with pytest.raises(EngineError, match=r"mine\.yaml"):
        read(text)


def test_an_absent_profile_names_the_shipped_ones() -> None:
    """A typo in the name is the most usual mistake."""
    with pytest.raises(UsageError, match="cpu, latency, long-context, throughput"):
        read_profile("lattency")


def flags(profile: Profile, model: ModelFacts = PLAIN, **others: Any) -> list[str]:
    return list(profile_flags(profile, others.get("device", "cpu"), model, others.get("draft")))


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (Profile(), []),
        (Profile(dtype="float16"), ["--dtype", "float16"]),
        (Profile(max_model_len="auto"), ["--max-model-len", "auto"]),
        (Profile(max_model_len=100), ["--max-model-len", "100"]),
        (Profile(max_num_seqs=3), ["--max-num-seqs", "3"]),
        (Profile(max_num_batched_tokens=9), ["--max-num-batched-tokens", "9"]),
        (Profile(chunked_prefill=True), ["--enable-chunked-prefill"]),
        (Profile(chunked_prefill=False), ["--no-enable-chunked-prefill"]),
        (Profile(prefix_caching=True), ["--enable-prefix-caching"]),
        (Profile(prefix_caching=False), ["--no-enable-prefix-caching"]),
        (Profile(kv_cache_dtype="fp8"), ["--kv-cache-dtype", "fp8"]),
        (Profile(quantization="fp8"), ["--quantization", "fp8_per_channel"]),
        (Profile(tensor_parallel_size=2), ["--tensor-parallel-size", "2"]),
        (Profile(pipeline_parallel_size=2), ["--pipeline-parallel-size", "2"]),
        (Profile(data_parallel_size=2), ["--data-parallel-size", "2"]),
    ],
)
def test_each_setting_becomes_vllms_flag(profile: Profile, expected: list[str]) -> None:
    """The forms are those of `vllm/engine/arg_utils.py`; vLLM ends at a flag that it does not
    know.
    """
    assert flags(profile) == expected


def test_quantized_checkpoints_keep_their_own_methods_name() -> None:
    """vLLM refuses a name that is not the checkpoint's."""
    packed = ModelFacts(quantization="int8", quantization_method="compressed-tensors")
    fp8 = ModelFacts(quantization="fp8", quantization_method="fp8")
    experts = ModelFacts(has_experts=True)
    assert flags(Profile(quantization="int8"), packed)[1] == "compressed-tensors"
    assert flags(Profile(quantization="fp8"), fp8)[1] == "fp8"
    assert flags(Profile(quantization="fp8"), PLAIN, device="gpu")[1] == "fp8_per_tensor"
    assert flags(Profile(quantization="int8"), experts)[1] == "int8_per_channel_weight_only"


@pytest.mark.parametrize(
    ("speculation", "draft", "config"),
    [
        (
            Speculation(method="ngram", tokens=4),
            None,
            {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        ),
        (
            Speculation(method="draft", tokens=4, model="/small"),
            PLAIN,
            {"method": "draft_model", "model": "/small"},
        ),
        (
            Speculation(method="eagle", tokens=4, model="/head"),
            ModelFacts(is_eagle=True),
            {"method": "eagle", "model": "/head"},
        ),
        (
            Speculation(method="eagle", tokens=4, model="/head"),
            ModelFacts(is_eagle=True, is_eagle3=True),
            {"method": "eagle3", "model": "/head"},
        ),
    ],
)
def test_speculation_becomes_vllms_json(
    speculation: Speculation, draft: ModelFacts | None, config: dict[str, object]
) -> None:
    """The methods are those of `vllm/config/speculative.py`."""
    flag, text = flags(Profile(speculative=speculation), draft=draft)
    assert flag == "--speculative-config"
    assert json.loads(text) == {**config, "num_speculative_tokens": 4}


@pytest.mark.parametrize(
    ("profile", "runs_on", "not_on"),
    [
        (Profile(kv_cache_dtype="fp8"), AVX512, AVX2),
        (Profile(quantization="fp8"), AMX, AVX512),
    ],
)
def test_a_cpu_without_the_kernel_is_refused(
    profile: Profile, runs_on: frozenset[str], not_on: frozenset[str]
) -> None:
    """vLLM would load for a minute and then end, or emulate at a tenth of the speed."""
    assert refused(profile, a_cpu(runs_on)) == set()
    assert len(refused(profile, a_cpu(not_on))) == 1


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_four_bit_weights_need_avx512_on_a_cpu_and_a_checkpoint(method: Any) -> None:
    """Their kernel is not in the library for AVX2, and nothing quantizes to them while loading."""
    packed = ModelFacts(quantization=method, quantization_method=method)
    assert refused(Profile(quantization=method), a_cpu(AVX512), packed) == set()
    assert refused(Profile(quantization=method), a_cpu(AVX2), packed) == {"quantization"}
    assert refused(Profile(), a_cpu(AVX2), packed) == {"quantization"}  # also unasked
    assert refused(Profile(quantization=method), a_cpu(AVX512)) == {"quantization"}
    unknown = ModelFacts(is_known=False)
    assert refused(Profile(quantization=method), a_cpu(AVX512), unknown) == set()
    wide = Profile(quantization=method, dtype="float32")
    assert refused(wide, a_cpu(AVX512), packed) == {"dtype"}


def test_int8_needs_int8_weights_or_experts() -> None:
    """vLLM would leave every linear layer at 16 bits, and nothing would say so."""
    packed = ModelFacts(quantization="int8", quantization_method="compressed-tensors")
    assert refused(Profile(quantization="int8"), a_cpu(), packed) == set()
    assert refused(Profile(quantization="int8"), a_cpu(), ModelFacts(has_experts=True)) == set()
    assert refused(Profile(quantization="int8"), a_cpu()) == {"quantization"}
    assert refused(Profile(quantization="fp8"), a_cpu(AMX), packed) == {"quantization"}
    assert refused(Profile(), a_cpu(frozenset()), packed) == {"quantization"}


@pytest.mark.parametrize(
    ("profile", "model", "runs_on", "not_on"),
    [
        (Profile(dtype="bfloat16"), PLAIN, (8, 0), (7, 5)),
        (Profile(kv_cache_dtype="fp8"), PLAIN, (8, 9), (7, 5)),
        (Profile(quantization="fp8"), PLAIN, (9, 0), (7, 0)),
        (Profile(), ModelFacts(quantization="awq"), (7, 5), (7, 0)),
        (Profile(), ModelFacts(quantization="gptq"), (6, 0), (5, 2)),
        (Profile(), ModelFacts(quantization="int8"), (9, 0), (10, 0)),
        (Profile(), ModelFacts(quantization="int8"), (7, 5), (7, 0)),
    ],
)
def test_a_gpu_is_judged_by_its_compute_capability(
    profile: Profile, model: ModelFacts, runs_on: tuple[int, int], not_on: tuple[int, int]
) -> None:
    """The table proves it on a machine without such a GPU."""
    assert refused(profile, gpus(runs_on), model) == set()
    assert len(refused(profile, gpus(not_on), model)) == 1
    assert len(refused(profile, gpus(runs_on, not_on), model)) == 1  # the weakest decides


def test_parallel_sizes_need_the_hardware_and_must_divide_the_model() -> None:
    """A rank too many ends the engine after the others have loaded."""
    two = Profile(tensor_parallel_size=2)
    assert refused(two, gpus((9, 0), (9, 0))) == set()
    assert refused(two, gpus((9, 0))) == {"tensor_parallel_size"}
    assert refused(two, a_cpu()) == {"tensor_parallel_size"}
    both = Profile(tensor_parallel_size=2, data_parallel_size=2)
    assert refused(both, gpus(*[(9, 0)] * 4)) == set()
    assert refused(both, gpus(*[(9, 0)] * 3)) == {"tensor_parallel_size", "data_parallel_size"}
    assert refused(Profile(data_parallel_size=2), a_cpu(cores=2)) == set()
    assert refused(Profile(data_parallel_size=3), a_cpu(cores=2)) == {"data_parallel_size"}
    three = Profile(tensor_parallel_size=3)
    assert refused(three, gpus(*[(9, 0)] * 3)) == {"tensor_parallel_size"}
    deep = Profile(pipeline_parallel_size=5)
    assert refused(deep, gpus(*[(9, 0)] * 5)) == {"pipeline_parallel_size"}


def test_limits_must_fit_each_other_and_the_model() -> None:
    """vLLM reports each of these only after it has loaded the model."""
    cpu = a_cpu()
    assert refused(Profile(max_model_len=8193), cpu) == {"max_model_len"}
    assert refused(Profile(max_model_len=8192), cpu) == set()
    narrow = Profile(max_num_seqs=9, max_num_batched_tokens=8)
    assert refused(narrow, cpu) == {"max_num_batched_tokens"}
    whole = Profile(chunked_prefill=False, max_num_batched_tokens=4096)
    assert refused(whole, cpu) == {"max_num_batched_tokens"}
    short = Profile(chunked_prefill=False, max_num_batched_tokens=4096, max_model_len=4096)
    assert refused(short, cpu) == set()
    odd = ModelFacts(head_dim=80)
    assert refused(Profile(kv_cache_dtype="fp8"), a_cpu(AVX512), odd) == {"kv_cache_dtype"}


def test_an_absent_device_is_refused() -> None:
    """It would otherwise be found out by CUDA, in fifty lines."""
    assert refused(Profile(device="gpu"), gpus()) == {"device"}
    found = refusals(Profile(device="cpu"), a_cpu(), PLAIN, installed="gpu")
    assert [item.key for item in found] == ["device"]
    assert "engine setup --device cpu" in found[0].reason


@pytest.mark.parametrize(
    ("method", "draft", "keys"),
    [
        ("draft", PLAIN, set()),
        ("draft", ModelFacts(vocabulary=100), {"speculative.model"}),
        ("eagle", ModelFacts(is_eagle=True), set()),
        ("eagle", PLAIN, {"speculative.model"}),
    ],
)
def test_the_drafting_model_must_be_of_the_right_kind(
    method: Any, draft: ModelFacts, keys: set[str]
) -> None:
    """Tokens of another vocabulary are other words."""
    profile = Profile(speculative=Speculation(method=method, tokens=3, model="/small"))
    assert {item.key for item in refusals(profile, a_cpu(), PLAIN, draft=draft)} == keys


def test_every_row_has_its_source_and_says_whether_it_was_run() -> None:
    """A rule without a source cannot be checked when vLLM changes."""
    for rule in hardware_rules():
        assert rule.source
        assert rule.proof == "table" or rule.proof.startswith("ran 2026-")


def test_the_table_covers_each_value_on_both_devices() -> None:
    """A value without a row would be let through."""
    values = {
        "dtype": ("bfloat16", "float16", "float32"),
        "kv_cache_dtype": ("fp8",),
        "quantization": ("fp8", "int8", "awq", "gptq"),
        "speculative.method": ("ngram", "draft", "eagle"),
        "tensor_parallel_size": (2,),
        "pipeline_parallel_size": (2,),
        "data_parallel_size": (2,),
    }
    for setting, given in values.items():
        for value in given:
            assert rule_for(setting, value, "cpu") is not None, (setting, value)
            assert rule_for(setting, value, "gpu") is not None, (setting, value)


def test_a_config_is_read_with_its_text_model_and_its_quantization() -> None:
    """Models with images keep the text's figures one level down."""
    weights = {"config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 8}}}}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "text_config": {
            "hidden_size": 256,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "vocab_size": 100,
            "num_experts": 8,
            "max_position_embeddings": 1000,
            "rope_scaling": {"type": "linear", "factor": 2.0},
        },
        "quantization_config": {"quant_method": "compressed-tensors", **weights},
    }
    assert facts_of(config) == ModelFacts(
        context_tokens=2000,
        attention_heads=4,
        head_dim=64,
        vocabulary=100,
        layers=2,
        has_experts=True,
        is_eagle=True,
        is_eagle3=True,
        quantization="int8",
        quantization_method="compressed-tensors",
    )


def test_the_answer_of_nvidia_smi_is_read() -> None:
    """Each line is a GPU; a driver's message is none."""
    found = gpus_in("NVIDIA H200, 9.0\nNVIDIA GeForce RTX 3090, 8.6\nno devices\n")
    assert [(gpu.name, gpu.capability) for gpu in found] == [
        ("NVIDIA H200", (9, 0)),
        ("NVIDIA GeForce RTX 3090", (8, 6)),
    ]


@pytest.mark.skipif(VLLM is None, reason="needs vLLM's source: python -m engine setup")
def test_the_installed_vllm_has_each_flag_name_and_source() -> None:
    """A flag that vLLM renames ends every start; its own source is the list."""
    assert VLLM is not None
    text = (VLLM / "engine" / "arg_utils.py").read_text(encoding="utf-8")
    flags_of_ours = {*NUMBERS.values(), *SIZES.values(), "--dtype", "--kv-cache-dtype"}
    flags_of_ours |= {f"--{name}" for name in SWITCHES.values()}
    flags_of_ours |= {"--quantization", "--speculative-config", "--max-num-queued-reqs"}
    assert {flag for flag in flags_of_ours if f'"{flag}"' not in text} == set()
    methods = (VLLM / "config" / "speculative.py").read_text(encoding="utf-8")
    for method in ("ngram", "draft_model", "eagle", "eagle3"):
        assert f'"{method}"' in methods
    online = (VLLM / "config" / "quantization.py").read_text(encoding="utf-8")
    for name in ("fp8_per_channel", "fp8_per_tensor", "int8_per_channel_weight_only"):
        assert f'"{name}"' in online
    for rule in hardware_rules():
        for path in re.findall(r"\bvllm/([\w/]+\.py)", rule.source):
            assert (VLLM / path).is_file(), path


@pytest.mark.parametrize("key", KNOWN)
def test_a_parser_is_one_of_vllm_or_of_a_plugin(key: str) -> None:
    """vLLM's KeyError for another came after it had loaded, at each start."""

    def refused_parsers(name: str | None, *extra: str) -> list[str]:
        profile, _ = read(f"{key}: {name or ''}")
        return [one.key for one in parser_refusals(profile, extra)]

    assert all(refused_parsers(name) == [] for name in (*KNOWN[key], "none", None))
    assert refused_parsers("nope") == [key]
    assert refused_parsers("nope", PLUGINS[key], "mine.py") == []
    assert refused_parsers("nope", f"{PLUGINS[key]}=mine.py") == []
    (near,) = parser_refusals(read(f"{key}: mistrall")[0], ())
    assert "it has mistral" in near.reason


@pytest.mark.skipif(VLLM is None, reason="needs vLLM's source: python -m engine setup")
@pytest.mark.parametrize(
    ("key", "folder"), [("reasoning_parser", "reasoning"), ("tool_call_parser", "tool_parsers")]
)
def test_the_parsers_are_those_of_the_installed_vllm(key: str, folder: str) -> None:
    """A name too many ends every start, one too few refuses a profile that works."""
    assert VLLM is not None
    tree = ast.parse((VLLM / folder / "__init__.py").read_text(encoding="utf-8"))
    (table,) = (node for node in ast.walk(tree) if isinstance(node, ast.Dict))
    assert {ast.literal_eval(name) for name in table.keys if name is not None} == KNOWN[key]
    names = (VLLM / "engine" / "arg_utils.py", VLLM / "entrypoints" / "launchers" / "cli_args.py")
    text = "".join(path.read_text(encoding="utf-8") for path in names)
    assert PLUGINS[key] in text


def vllm_limits(vllm: Path, *, memory: int, name: str, device: str = "cuda") -> tuple[int, int]:
    """Return the sequences and tokens of `vllm serve` by the installed vLLM's own function, run
    apart from its package: importing that takes seconds and needs its device.
    """
    tree = ast.parse((vllm / "engine" / "arg_utils.py").read_text(encoding="utf-8"))
    found = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "get_batch_defaults"
    )
    found.decorator_list = []
    found.returns = None
    found.body = [
        node for node in found.body if not isinstance(node, ast.ImportFrom | ast.AnnAssign)
    ]
    contexts = SimpleNamespace(LLM_CLASS="offline", OPENAI_API_SERVER="server")
    platform = SimpleNamespace(
        get_device_total_memory=lambda: memory,
        get_device_name=lambda: name,
        is_tpu=lambda: False,
        is_cpu=lambda: device == "cpu",
    )
    scope: dict[str, Any] = {
        "current_platform": platform,
        "GiB_bytes": 2**30,
        "UsageContext": contexts,
    }
    exec(compile(ast.Module(body=[found], type_ignores=[]), "arg_utils", "exec"), scope)
    tokens, sequences = scope["get_batch_defaults"](None, 1)
    return sequences["server"], tokens["server"]


@pytest.mark.skipif(VLLM is None, reason="needs vLLM's source: python -m engine setup")
def test_the_batch_limits_of_each_gpu_are_those_of_the_installed_vllm() -> None:
    """A plan with another batch sizes another engine: 256 halved the throughput of an H200."""
    assert VLLM is not None
    for gpu in gpu_table().values():
        limits = default_limits(gpu)
        seen = vllm_limits(VLLM, memory=gpu.memory_bytes, name=f"NVIDIA {gpu.name}")
        assert (limits.sequences, limits.tokens) == seen, gpu.name
    assert vllm_limits(VLLM, memory=0, name="", device="cpu") == CPU_LIMITS


@pytest.mark.parametrize("name", shipped_names())
def test_a_profile_below_a_default_of_vllm_gives_its_reason(name: str) -> None:
    """The throughput profile set 256 sequences, so on an H100 it was slower than no profile."""
    text = (SHIPPED_PROFILES / f"{name}.yaml").read_text(encoding="utf-8")
    comment = " ".join(line for line in text.splitlines() if line.startswith("#"))
    profile = read_profile(name).profile
    limits = [default_limits(gpu) for gpu in gpu_table().values()]
    defaults = [(one.sequences, one.tokens) for one in limits] + [CPU_LIMITS]
    for key, default in zip(
        ("max_num_seqs", "max_num_batched_tokens"),
        (max(one[0] for one in defaults), max(one[1] for one in defaults)),
        strict=True,
    ):
        value = getattr(profile, key)
        assert value is None or value >= default or (key in comment and name != "throughput")


def test_the_queue_of_a_gpu_holds_more_than_it_runs() -> None:
    """vLLM counts running requests too: 256 would keep an H100 from its 1,024 sequences."""
    for gpu in gpu_table().values():
        assert MAX_QUEUED_REQUESTS["gpu"] > default_limits(gpu).sequences
    assert MAX_QUEUED_REQUESTS["cpu"] > CPU_LIMITS[0]
    throughput = read_profile("throughput").profile
    assert (throughput.max_num_queued_reqs or 0) > (throughput.max_num_seqs or 0)


def test_the_reference_lists_every_key_and_profile() -> None:
    """An undocumented key is not used, and a documented one that is gone misleads."""
    page = Path(REPOSITORY / "docs" / "guides" / "engine.md").read_text(encoding="utf-8")
    section = page.split("\n## Profiles\n")[1].split("\n## ")[0]
    documented = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
    keys = {*KEYS, *(f"speculative.{key}" for key in SPECULATIVE)}
    assert documented == {*keys, *shipped_names()}
