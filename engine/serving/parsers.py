"""The parsers of vLLM 0.32 by name, and the check of a profile's parsers against them.

vLLM answers an unknown name with a KeyError while it loads. The tests compare the names with the
installed vLLM's own.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from engine.serving.profile import Profile, Refused
from engine.vllm_command import NO_PARSER

REASONING_PARSERS = frozenset(
    [
        "cohere_command3",
        "cohere_command4",
        "deepseek_r1",
        "deepseek_v3",
        "deepseek_v4",
        "deepseek_v41",
        "ernie45",
        "gemma4",
        "glm45",
        "glm47",
        "granite",
        "granite_thinking_parser",
        "hf",
        "holo2",
        "hunyuan_a13b",
        "hy_v3",
        "hy_v4",
        "inkling",
        "k2_horizon",
        "kimi_k2",
        "kimi_k3",
        "ling3",
        "mimo",
        "minicpmv",
        "minimax_m2",
        "minimax_m2_append_think",
        "minimax_m3",
        "mistral",
        "muse_glimmer",
        "nemotron_v3",
        "olmo3",
        "openai_gptoss",
        "plamo3",
        "poolside_v1",
        "qwen3",
        "seed_oss",
        "step3",
        "step3p5",
    ]
)
"""Of `--reasoning-parser`."""
TOOL_CALL_PARSERS = frozenset(
    [
        "apertus",
        "cohere_command3",
        "cohere_command4",
        "deepseek_v3",
        "deepseek_v31",
        "deepseek_v32",
        "deepseek_v4",
        "deepseek_v41",
        "dots",
        "ernie45",
        "functiongemma",
        "gemma4",
        "gigachat3",
        "glm45",
        "glm47",
        "granite",
        "granite-20b-fc",
        "granite4",
        "hermes",
        "hf",
        "hunyuan_a13b",
        "hy_v3",
        "hy_v4",
        "inkling",
        "internlm",
        "jamba",
        "k2_horizon",
        "kimi_k2",
        "kimi_k3",
        "lfm2",
        "ling3",
        "llama3_json",
        "llama4_json",
        "llama4_pythonic",
        "longcat",
        "mimo",
        "minicpm5",
        "minimax_m2",
        "minimax_m3",
        "mistral",
        "muse_glimmer",
        "olmo3",
        "openai",
        "phi4_mini_json",
        "plamo3",
        "poolside_v1",
        "pythonic",
        "qwen3_coder",
        "qwen3_json",
        "qwen3_xml",
        "seed_oss",
        "step3",
        "step3p5",
        "xlam",
    ]
)
"""Of `--tool-call-parser`."""
KNOWN = {"reasoning_parser": REASONING_PARSERS, "tool_call_parser": TOOL_CALL_PARSERS}
PLUGINS = {
    "reasoning_parser": "--reasoning-parser-plugin",
    "tool_call_parser": "--tool-parser-plugin",
}
"""vLLM's flags that load further parsers from a file."""


def parser_refusals(profile: Profile, extra: Sequence[str]) -> Iterator[Refused]:
    """Yield each parser that vLLM does not have, unless an argument in `extra` adds parsers."""
    for key, known in KNOWN.items():
        name: str | None = getattr(profile, key)
        has_plugin = any(one.split("=")[0] == PLUGINS[key] for one in extra)
        if name is None or name == NO_PARSER or name in known or has_plugin:
            continue
        near = get_close_matches(name, known, n=3) or sorted(known)
        yield Refused(
            key=key,
            value=name,
            reason=f"vLLM has no such parser; it has {', '.join(near)}, or {NO_PARSER}. Parsers of "
            f"yours: -- {PLUGINS[key]} FILE; of another vLLM: -- --{key.replace('_', '-')} {name}",
        )
