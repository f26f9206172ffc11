"""The two nginx of the benchmark: an upstream that answers at once, and a plain proxy in front of
it.

The upstream is nginx because it must never be the bottleneck: it answers 100,000 plain chats a
second on one core.
"""

from __future__ import annotations

import json
from pathlib import Path

# Of one stream: role, 98 words, finish reason, usage. `[DONE]` comes with the last one.
EVENTS = 101
PACE_S = 0.02
MODULES = Path("/usr/lib/nginx/modules")
_MODEL = "upstream-model"


def upstream_config(folder: Path, ports: dict[str, int]) -> str:
    """Return the upstream: `plain`, `burst` and `paced` streams, the latter two also as vLLM (usage
    on every event).

    `large` answers as `plain`, but only after reading the body, as an engine would.
    """
    servers = [
        _server(ports["plain"], f"default_type application/json; return 200 '{whole_answer()}';")
    ]
    for name, delay_s in (("burst", 0.0), ("paced", PACE_S)):
        servers.append(_server(ports[name], _stream(delay_s, has_running_usage=False)))
        servers.append(_server(ports[f"{name}-vllm"], _stream(delay_s, has_running_usage=True)))
    answer = whole_answer()
    reads = (
        f"ngx.req.read_body() ngx.header['Content-Length'] = {len(answer)} "
        f"ngx.print([==[{answer}]==])"
    )
    servers.append(
        _server(
            ports["large"], f"default_type application/json; content_by_lua_block {{ {reads} }}"
        )
    )
    count = (
        "default_type text/plain; content_by_lua_block { ngx.print(ngx.shared.sent:get('events') "
        "or 0) }"
    )
    servers.append(_server(ports["count"], count))
    modules = [f"load_module {MODULES}/{name}_module.so;" for name in ("ndk_http", "ngx_http_lua")]
    return _config(
        folder,
        "upstream",
        ["lua_shared_dict sent 1m;", "lua_socket_log_errors off;", *servers],
        modules,
    )


def proxy_config(folder: Path, ports: dict[str, int], upstreams: dict[str, int]) -> str:
    """Return the plain proxy: the minimum cost of any gateway."""
    parts = []
    for name, port in ports.items():
        parts.append(
            f"upstream {name} {{ server 127.0.0.1:{upstreams[name]}; keepalive 512; "
            f"keepalive_requests 100000000; }}"
        )
        parts.append(
            _server(
                port,
                f"proxy_pass http://{name}; proxy_http_version 1.1; proxy_set_header Connection "
                "''; proxy_buffering off; proxy_read_timeout 60s;",
            )
        )
    return _config(folder, "proxy", parts, [])


def _config(folder: Path, name: str, parts: list[str], modules: list[str]) -> str:
    scratch = " ".join(
        f"{kind}_temp_path {folder}/{name}-{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return "\n".join(
        [
            *modules,
            f"daemon off; worker_processes 1; pid {folder}/{name}.pid; error_log "
            f"{folder}/{name}.log warn;",
            "events { worker_connections 8192; }",
            "http {",
            f"access_log off; {scratch} client_body_buffer_size 2m; client_max_body_size 64m; "
            "tcp_nodelay on;",
            "keepalive_requests 100000000; keepalive_timeout 300s;",
            *parts,
            "}",
        ]
    )


def _server(port: int, does: str) -> str:
    return f"server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ {does} }} }}"


def _stream(delay_s: float, *, has_running_usage: bool) -> str:
    """Return Lua that sends every event in its own packet, as an engine does, and counts the
    sent events.
    """
    wait = f"ngx.sleep({delay_s})" if delay_s else ""
    usage = _usage(100) if has_running_usage else None
    first = _event({"role": "assistant", "content": ""}, usage=usage)
    word, last = (
        _event({"content": " word"}, usage=usage),
        _event({}, finish_reason="stop", usage=usage),
    )
    return f"""content_by_lua_block {{
      ngx.header["Content-Type"] = "text/event-stream; charset=utf-8"
      local function send(text) ngx.print(text); ngx.flush(true); ngx.shared.sent:incr("events", 1, 0) end
      send([==[{first}]==])
      local word = [==[{word}]==]
      for _ = 1, {EVENTS - 3} do {wait} send(word) end
      send([==[{last}]==])
      send([==[{_event(None, usage=_usage(EVENTS - 3))}data: [DONE]\n\n]==])
    }}"""  # noqa: E501


def _event(
    delta: dict[str, str] | None, *, finish_reason: str | None = None, usage: object = None
) -> str:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    chunk = {
        "id": "chatcmpl-8f2c1d7a90b34e65",
        "object": "chat.completion.chunk",
        "created": 1764000000,
        "model": _MODEL,
        "choices": [] if delta is None else [choice],
    }
    return (
        "data: "
        f"{json.dumps(chunk | ({'usage': usage} if usage else {}), separators=(',', ':'))}\n\n"
    )


def whole_answer() -> str:
    """A plain chat's answer, about 1 KB."""
    message = {
        "role": "assistant",
        "content": "The second one: a pager that stays silent hides all others. " * 10,
    }
    answer = {
        "id": "chatcmpl-8f2c1d7a90b34e65",
        "object": "chat.completion",
        "created": 1764000000,
        "model": _MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": _usage(140) | {"prompt_tokens_details": {"cached_tokens": 64}},
    }
    return json.dumps(answer)


def _usage(output_tokens: int) -> dict[str, object]:
    return {
        "prompt_tokens": 180,
        "completion_tokens": output_tokens,
        "total_tokens": 180 + output_tokens,
    }
