"""Declares and runs the commands of `python -m engine` (plan, bench, setup, model, serve, wait,
status, calibrate), and turns their errors into messages and exit codes.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from engine import environment, model_making, vllm_command
from engine import home as homes
from engine.arguments.called import MODULE, named
from engine.arguments.numbers import whole
from engine.arguments.printable import printable
from engine.bench.command import add_bench, run_bench
from engine.calibration.command import add_calibrate, run_calibrate
from engine.cluster.ray_packages import add_ray
from engine.cluster.serve import serve_on_cluster
from engine.errors import EngineError, UsageError
from engine.plan.command import add_plan, run_plan
from engine.progress import StageProgress
from engine.serving.profile import shipped_names
from engine.serving.readiness import probe_of, wait_until_ready
from engine.serving.serve import DEFAULT_MODEL, serve
from engine.status import as_text, status

TOUR = """\
Self-hosted inference for Tollgate: vLLM in an environment of its own.

  python -m engine setup      install vLLM (0.6 GB to download, 2.3 GB of disk, about 2 minutes)
  python -m engine model      say where the tiny chat model is that comes with this package
  python -m engine serve      serve it on http://127.0.0.1:8001 until you press Ctrl-C
  python -m engine wait       wait until it answers a one-token request
  python -m engine status     what is installed and made
  python -m engine plan       what fits on which GPU, how fast and at what cost (needs no setup)
  python -m engine bench      measure latency and throughput of an engine, or compare two profiles
  python -m engine calibrate  measure the engine time of input, cached input and output tokens

Run setup and serve in this order; setup is instant where its work is already done.
"""
EXITS = """\
Everything is kept in TOLLGATE_ENGINE_HOME (else TOLLGATE_HOME/engine, else ~/.tollgate/engine).
Exit codes: 0 success, 1 something failed, 2 bad usage, 3 could not find out. Errors say what to do next.
"""  # noqa: E501


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of `python -m engine` and return its exit code."""
    options = parser().parse_args(arguments)
    act: Callable[[argparse.Namespace], int] = options.act
    try:
        code = act(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader, such as `head`, has had enough; the interpreter's own flush would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except EngineError as error:
        print(f"\n{printable(named(str(error)))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(
            "\nInterrupted. Run the same command again; nothing half-made is used.", file=sys.stderr
        )
        return 1


class CommandParser(argparse.ArgumentParser):
    """A parser whose texts have the name by which it was called, and whose error comes alone: the
    usage of `serve` is 20 lines, and the error stood below it.
    """

    def format_help(self) -> str:
        """Return the help."""
        return named(super().format_help())

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and the next step, and exit 2."""
        self.exit(2, named(f"{message[:1].upper()}{message[1:]}. See: {self.prog} --help\n"))


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of `python -m engine`, with all its commands."""
    top = CommandParser(
        prog=MODULE,
        description=TOUR,
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_setup(commands)
    _add_model(commands)
    _add_serve(commands)
    _add_wait(commands)
    _add_status(commands)
    add_plan(
        _command(commands, "plan", does="Say what fits, how fast and at what cost.", act=run_plan)
    )
    add_bench(_command(commands, "bench", does="Measure an engine under load.", act=run_bench))
    add_calibrate(
        _command(
            commands,
            "calibrate",
            does="Measure the engine time of each kind of token.",
            act=run_calibrate,
        )
    )
    return top


Commands = argparse._SubParsersAction  # the type has no public name


def _command(
    commands: "Commands[CommandParser]",
    name: str,
    *,
    does: str,
    act: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Add a command with its description and its action, and return the command's parser."""
    command = commands.add_parser(name, help=does, description=does, epilog=EXITS)
    command.set_defaults(act=act)
    return command


def _add_progress(command: argparse.ArgumentParser) -> None:
    """Add the option `--progress` to a command."""
    command.add_argument(
        "--progress", choices=("text", "json"), default="text", help="json: one object per line"
    )


def _add_device(command: argparse.ArgumentParser) -> None:
    """Add the option `--device` to a command."""
    command.add_argument(
        "--device",
        choices=("auto", "cpu", "gpu"),
        default="auto",
        help="auto: gpu where nvidia-smi finds one",
    )


def _add_setup(commands: "Commands[CommandParser]") -> None:
    """Add the command `setup`, which installs vLLM, with its options."""
    command = _command(
        commands, "setup", does="Install vLLM into the engine's own environment.", act=_setup
    )
    _add_device(command)
    command.add_argument(
        "--cluster",
        action="store_true",
        help="add Ray, for serve --cluster (0.2 GB to download); needed on each machine",
    )
    _add_progress(command)


def _setup(options: argparse.Namespace) -> int:
    """Install vLLM into the engine's environment, or keep a current one; return 0."""
    progress = StageProgress(stage="setup", format=options.progress)
    environment.set_up(_home(), environment.detect_device(options.device), progress)
    if options.cluster:
        add_ray(_home(), progress)
    return 0


def _add_model(commands: "Commands[CommandParser]") -> None:
    """Add the command `model`, which finds or trains the tiny model, with its options."""
    command = _command(
        commands,
        "model",
        does="Say where the shipped tiny chat model is, or train it again.",
        act=_model,
    )
    command.add_argument(
        "--train", action="store_true", help="train it here (2 to 10 minutes on two cores)"
    )
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="default: models/trained in the engine's home"
    )
    command.add_argument("--steps", type=whole, help=f"default: {model_making.Training().steps}")
    command.add_argument(
        "--seconds", type=whole, help="end a round earlier than --steps after this"
    )
    command.add_argument(
        "--seed", type=int, help="the same seed and steps on the same machine give the same model"
    )
    _add_progress(command)


def _model(options: argparse.Namespace) -> int:
    """Train the tiny model, or print the shipped one's folder; return 0. Raises `UsageError`."""
    progress = StageProgress(stage="model", format=options.progress)
    given = {"steps": options.steps, "limit_s": options.seconds, "seed": options.seed}
    chosen = {name: value for name, value in given.items() if value is not None}
    if not options.train:
        if chosen or options.out:
            raise UsageError(
                "--out, --steps, --seconds and --seed belong to: python -m engine model --train"
            )
        progress.say(
            "done",
            f"The tiny model is in {model_making.TINY}. Serve it with: python -m engine serve",
        )
        return 0
    home = _home()
    out = options.out.expanduser().absolute() if options.out else model_making.default_out(home)
    model_making.make(home, out, training=model_making.Training(**chosen), progress=progress)
    return 0


def _add_serve(commands: "Commands[CommandParser]") -> None:
    """Add the command `serve`, which runs vLLM, with its options."""
    command = _command(
        commands,
        "serve",
        does="Serve a model with vLLM until told to stop; start it again if it ends.",
        act=_serve,
    )
    command.add_argument(
        "--profile",
        metavar="NAME|FILE.yaml",
        help=f"settings of the engine: {', '.join(shipped_names())}, or a file of yours",
    )
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command and each refused key, and start nothing",
    )
    command.add_argument(
        "--format",
        choices=("json", "table", "csv"),
        help="of --dry-run; default: json. csv: the refused keys",
    )
    command.add_argument(
        "--cluster",
        action="store_true",
        help="deploy it on the running Ray cluster (RAY_ADDRESS, else the one of this machine), "
        "with data_parallel_size replicas",
    )
    command.add_argument(
        "--closed-network",
        action="store_true",
        help="confirm that nothing else can reach the cluster's network: Ray has no password",
    )
    _add_serve_address(command)
    _add_serve_settings(command)
    command.add_argument(
        "--outlive-parent",
        action="store_true",
        help="go on when the program that started this ends (nohup)",
    )
    command.add_argument(
        "--must-start",
        action="store_true",
        help="end, instead of starting it again, if the engine ends before it was ever ready",
    )
    command.add_argument(
        "extra", nargs="*", metavar="-- VLLM_ARGUMENT", help="passed on to vllm serve"
    )


def _serve(options: argparse.Namespace) -> int:
    """Serve a model on this machine or on a cluster; return the exit code. Raises `UsageError`."""
    if options.format and not options.dry_run:
        raise UsageError("--format belongs to --dry-run.")
    options.format = options.format or "json"
    if options.cluster:
        return serve_on_cluster(options)
    if options.closed_network:
        raise UsageError("--closed-network belongs to --cluster.")
    return serve(options)


def _add_serve_address(command: argparse.ArgumentParser) -> None:
    """Add the options of `serve` that name the model and its address."""
    command.add_argument(
        "--model",
        help="tiny, a folder, a name in the engine's home, or a hub name (ORG/NAME); default: the "
        f"profile's, else {DEFAULT_MODEL}",
    )
    command.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="what clients call it; default: the folder's name",
    )
    command.add_argument(
        "--host", default="127.0.0.1", help="default: %(default)s. An engine port is never public"
    )
    command.add_argument(
        "--port",
        type=_port,
        default=os.environ.get("TOLLGATE_ENGINE_PORT") or str(vllm_command.DEFAULT_PORT),
        help="default: TOLLGATE_ENGINE_PORT, else 8001",
    )
    command.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="clients must send the key in this file"
    )
    command.add_argument(
        "--region",
        default="unknown",
        metavar="NAME",
        help="the region in the printed deployment block; default: %(default)s",
    )


def _add_serve_settings(command: argparse.ArgumentParser) -> None:
    """Add the options of `serve` that win over the profile."""
    command.add_argument(
        "--device",
        choices=("auto", "cpu", "gpu"),
        help="default: the profile's, else that of the installed environment",
    )
    command.add_argument(
        "--max-model-len",
        type=whole,
        metavar="TOKENS",
        help="default: the profile's, else 4096",
    )
    command.add_argument(
        "--runner",
        choices=("generate", "pooling"),
        default="generate",
        help="pooling: /v1/embeddings instead of chat",
    )
    command.add_argument(
        "--reasoning-parser",
        metavar="NAME",
        help="of vLLM, or none; default: the profile's, without a profile qwen3",
    )
    command.add_argument(
        "--tool-call-parser",
        metavar="NAME",
        help="of vLLM, or none; default: the profile's, without a profile hermes",
    )


def _add_wait(commands: "Commands[CommandParser]") -> None:
    """Add the command `wait`, which waits for an engine, with its options."""
    command = _command(
        commands, "wait", does="Wait until an engine answers a one-token request.", act=_wait
    )
    command.add_argument(
        "--url",
        default=f"http://127.0.0.1:{vllm_command.DEFAULT_PORT}",
        help="with or without /v1; default: %(default)s",
    )
    command.add_argument("--model", metavar="NAME", help="default: the first that the engine lists")
    command.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="the file with the engine's key"
    )
    command.add_argument(
        "--timeout", type=whole, default=180, metavar="SECONDS", help="default: %(default)s"
    )
    _add_progress(command)


def _wait(options: argparse.Namespace) -> int:
    """Wait until an engine answers and return 0. Raises `UnknownStateError` if it does not in
    time.
    """
    key = vllm_command.read_key(options.api_key_file) if options.api_key_file else None
    wait_until_ready(
        probe_of(options.url, model=options.model, key=key),
        float(options.timeout),
        StageProgress(stage="wait", format=options.progress),
    )
    return 0


def _add_status(commands: "Commands[CommandParser]") -> None:
    """Add the command `status`, which prints the state of the engine's folder, with its options."""
    command = _command(commands, "status", does="Say what is installed and made.", act=_status)
    command.add_argument("--json", action="store_true", help="for programs")


def _status(options: argparse.Namespace) -> int:
    """Print the state of the engine's folder, as text or JSON; return 0."""
    state = status(_home())
    print(json.dumps(state, indent=2) if options.json else named(as_text(state)))
    return 0


def _home() -> homes.EngineHome:
    """Return the engine's folder that the environment variables name."""
    return homes.engine_home(os.environ)


def _port(text: str) -> int:
    """Return the port number in an argument. Raises `ArgumentTypeError` unless it is from 1 to
    65535.
    """
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port between 1 and 65535 (see TOLLGATE_ENGINE_PORT)"
        )
    return int(text)
