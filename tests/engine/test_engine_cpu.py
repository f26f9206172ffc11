"""Which number format the engine calculates in, decided by the CPU."""

import os
from pathlib import Path

import pytest
from engine_factories import a_home, a_serving

from engine import cpu, vllm_command
from engine.cpu import NumberFormat

AVX2 = frozenset({"avx", "avx2", "fma"})
AVX512 = AVX2 | {"avx512f", "avx512_vnni"}


@pytest.mark.parametrize(
    ("flags", "aten_capability", "expected"),
    [
        (AVX2, None, "float32"),
        (AVX512, None, "float32"),  # AVX-512 alone multiplies no bfloat16
        (AVX512 | {"avx512_bf16"}, None, "bfloat16"),
        (AVX512 | {"amx_bf16"}, None, "bfloat16"),
        (frozenset({"asimd", "bf16"}), None, "bfloat16"),
        (frozenset({"asimd"}), None, "float32"),
        (frozenset(), None, "float32"),  # not Linux, or no /proc
        (AVX512 | {"avx512_bf16"}, "avx2", "float32"),
        (AVX512 | {"avx512_bf16"}, "AVX2", "float32"),
        (AVX512 | {"avx512_bf16"}, "default", "float32"),
        (AVX512 | {"avx512_bf16"}, "avx512", "bfloat16"),
        (AVX512 | {"avx512_bf16"}, "", "bfloat16"),
        (AVX2, "avx512", "float32"),  # the variable cannot add features that the CPU lacks
    ],
)
def test_bfloat16_is_chosen_only_if_it_is_native(
    flags: frozenset[str], aten_capability: str | None, expected: NumberFormat
) -> None:
    """Emulated, a matrix product takes 15 times as long; a larger CPU can simulate a smaller
    one.
    """
    assert cpu.number_format(flags, aten_capability) == expected


def test_flags_are_read_on_both_architectures() -> None:
    """x86-64 names the line `flags`, aarch64 `Features`."""
    assert cpu.flags_in("processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\n") == {
        "fpu",
        "avx2",
    }
    assert cpu.flags_in("processor\t: 0\nFeatures\t: fp asimd bf16\n") == {"fp", "asimd", "bf16"}
    assert cpu.flags_in("") == frozenset()


def test_this_machine_with_avx2_alone_simulated_calculates_in_float32() -> None:
    """The published times with only AVX2 are of this path, on any CPU."""
    assert cpu.number_format_here({**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}) == "float32"
    assert cpu.number_format_here({}) == cpu.number_format(cpu.flags_here(), None)


def test_vllm_gets_a_dtype_only_for_float32_on_a_cpu(tmp_path: Path) -> None:
    """With native bfloat16, the model's own format is right; the person's own --dtype always
    wins.
    """
    home = a_home(tmp_path)
    argv = vllm_command.command(
        home, a_serving(number_format="float32", extra=("--dtype", "bfloat16"))
    )
    assert [argv[place + 1] for place, flag in enumerate(argv) if flag == "--dtype"] == [
        "float32",
        "bfloat16",
    ]
    assert "--dtype" not in vllm_command.command(home, a_serving(number_format="bfloat16"))
    assert "--dtype" not in vllm_command.command(
        home, a_serving(device="gpu", number_format="float32")
    )
