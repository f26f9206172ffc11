"""Converts the shipped tiny model into llama.cpp's format; runs in the engine's environment.

    python to_gguf.py LLAMA_CPP_SOURCE MODEL OUTPUT

Two things of the model are unknown to llama.cpp. Its converter recognises tokenizers by a hash;
this one splits text as GPT-2's does. And its template engine has no filter `first` for an object,
so the template takes the first key in a loop, which writes the same text.
"""

import runpy
import shutil
import sys
import tempfile
from pathlib import Path

FIRST = "{{ ((tool.function.parameters or {}).properties or {'input': ''}) | first }}"
LOOPED = (
    "{%- for name in ((tool.function.parameters or {}).properties or {'input': ''}) %}"
    "{% if loop.first %} {{ name }}{% endif %}{% endfor %}"
)


def main(source: Path, model: Path, output: str) -> None:
    """Run llama.cpp's converter on a copy of the model with the other template."""
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    from conversion import base

    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(model, Path(folder) / "tiny")
        template = copy / "chat_template.jinja"
        text = template.read_text(encoding="utf-8")
        changed = text.replace(f" {FIRST}", LOOPED)
        assert changed != text, "the template has changed"
        template.write_text(changed, encoding="utf-8")
        converter = str(source / "convert_hf_to_gguf.py")
        sys.argv = [converter, str(copy), "--outfile", output, "--outtype", "f32"]
        runpy.run_path(converter, run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
