"""Lists, by provider and tool, the facts about tools that a provider runs itself: whether a round
reads the context window again, the member that bounds the rounds, and how a call is billed.

Facts only: `domain.request.rounds` decides with them. A tool or provider that is not here is
unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from fnmatch import fnmatchcase

from gateway.domain.operation import Operation


class RoundLimit(StrEnum):
    """The request's member by which a provider bounds the rounds of its tools."""

    MAX_TOOL_CALLS = "max_tool_calls"  # of the request: all calls of all tools
    MAX_TURNS = "max_turns"  # of the request: the rounds, each with any number of calls
    MAX_USES = "max_uses"  # of each tool: its calls

    @property
    def is_of_tool(self) -> bool:
        """Return True if the member stands in each tool, False if it is the request's."""
        return self is RoundLimit.MAX_USES


_OTHER_FEE = "other_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFacts:
    """One tool at one provider.

    `tools` are its types, folded, each in any version; one that ends in a colon is the beginning of
    types, and an empty one is any other type. `members` are the request's members that are the
    tool, folded.
    `reads_again`: whether each round reads the context window again; None is unknown. `limit` is
    the member that bounds the rounds, None if the provider honours none. `most_rounds` is the most
    rounds that the provider states for the tool by itself. `bills_as` is the kind of its calls.
    `is_counted`: the calls stand in the usage, or in the items of the answer. `most_call_usd` is
    the dearest known fee of one call: 0 for no fee, None if it is unknown. `is_floor`: it is held
    also if a price has a rate of the kind, because the kind has cheaper calls too.
    `is_cheaper_thinking`: models that think pay the cheaper calls' fee, all others this one.
    `is_made_at_once`: one fee is due before the model decides if it calls the tool.
    `finds_in_body`: its results are parts of the request itself.
    """

    tools: tuple[str, ...]
    reads_again: bool | None
    source: str
    members: tuple[str, ...] = ()
    limit: RoundLimit | None = None
    most_rounds: int | None = None
    bills_as: str | None = None
    is_counted: bool = False
    most_call_usd: Decimal | None = None
    is_floor: bool = False
    is_cheaper_thinking: bool = False
    is_made_at_once: bool = False
    finds_in_body: bool = False

    @property
    def is_free(self) -> bool:
        """Return True if its calls cost nothing beside their tokens."""
        return self.most_call_usd == 0

    @property
    def unknown_fee(self) -> str | None:
        """The kind of its calls if no page states their fee, None if one does. A tool about which
        nothing is known may cost as much as another model.
        """
        return None if self.most_call_usd is not None else self.bills_as or _OTHER_FEE


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsAt:
    """The tools of one provider, the first that fits counts.

    `most_rounds` is the most rounds of one request that the provider states for all tools together.
    `caps_all_rounds`: the maximum of the answer bounds all rounds together, not each one.
    `bounds_calls`: a bound of the rounds bounds the calls too; False if a round may have several.
    `limit_is_void_with` is a member that makes the provider ignore its limit. `with_files` is the
    tool that the provider adds to a request with files, None if it adds none.
    """

    rows: tuple[ToolFacts, ...]
    most_rounds: int | None = None
    caps_all_rounds: bool = False
    bounds_calls: bool = True
    limit_is_void_with: str | None = None
    with_files: str | None = None
    source: str = ""

    def facts_of(self, tool: str, *, is_member: bool = False) -> ToolFacts:
        """Return the facts about a tool by its folded type, or by the request's member that is the
        tool: a type of the same name says nothing about a member.
        """
        for row in self.rows:
            if tool in row.members if is_member else any(_is_of(name, tool) for name in row.tools):
                return row
        return UNKNOWN_TOOL


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchModels:
    """Models that search, or work in rounds with each other, by themselves in each request.

    `models` are patterns of their names; `providers` is empty for every provider that is not
    self-hosted, but for those of `elsewhere`. `per_request` is the number of calls that each
    request is billed, None if nothing states it. `agents` is the most of them that the provider
    states, each with a window and an answer of its own. `is_unbounded`: no page states the most
    rounds. `ignores_maximum`: no maximum of the request bounds an answer.
    """

    models: tuple[str, ...]
    tool: ToolFacts
    providers: frozenset[str] = frozenset()
    per_request: int | None = None
    elsewhere: frozenset[str] = frozenset()
    agents: int = 1
    is_unbounded: bool = False
    ignores_maximum: bool = False


# The version behind a type, folded: `web_search_preview_2025_03_11`, `bash_20250124`.
_VERSION = re.compile("(?:preview)?[0-9]*")


def _is_of(name: str, tool: str) -> bool:
    """Return True if a folded type is one that a row names, in any version."""
    if not name or name.endswith(":"):
        return tool.startswith(name)
    return tool.startswith(name) and _VERSION.fullmatch(tool, len(name)) is not None


UNKNOWN_TOOL = ToolFacts(tools=("",), reads_again=None, source="no published fact")

_NO_FEE = Decimal(0)
# "An upper bound for the number of tokens that can be generated for a response", and "the maximum
# number of total calls to built-in tools that can be processed in a response. ... Any further
# attempts to call a tool by the model will be ignored". The guide of deep research: it controls
# "the total number of tool calls (like to web search or an MCP server)".
_OPENAI = (
    "openai 3.57.0, types/responses/response_create_params.py; "
    "developers.openai.com/api/docs/guides/deep-research, 2026-11-28"
)
_OPENAI_TOOLS = "openai 3.57.0, types/responses/tool_param.py, 2026-11-28"
_OPENAI_PRICES = "developers.openai.com/api/docs/pricing, built-in tools, 2026-11-28"
# "When new tools are discovered by the model, they are injected at the end of the context window":
# functions and namespaces of the request, or those of a server that is a tool of its own.
_OPENAI_FINDS = "developers.openai.com/api/docs/guides/tools-tool-search, 2026-11-29"
# "When using Chat Completions, the model always retrieves information from the web before
# responding to your query."
_OPENAI_SEARCH = "developers.openai.com/api/docs/guides/tools-web-search (chat), 2026-11-28"
# The dearest of the page: the preview tool with models that do not reason.
_OPENAI_SEARCH_USD = Decimal("0.025")
# A container costs by its memory, for at most twenty minutes: USD 0.03 with 1 GB, the standard. One
# that is named by its id may have any size.
CODE_INTERPRETER, ANY_SIZE = "codeinterpreter", "ofanysize"
CONTAINER_SIZES: Mapping[str, Decimal] = {
    "4g": Decimal("0.12"),
    "16g": Decimal("0.48"),
    "64g": Decimal("1.92"),
}


def _openai_tool(
    *tools: str,
    kind: str | None = None,
    usd: Decimal | None = None,
    source: str = f"{_OPENAI}; {_OPENAI_PRICES}",
    is_made_at_once: bool = False,
) -> ToolFacts:
    """Return a row of OpenAI's tools in responses: all are bounded in the same way. A tool without
    a fee, or with a kind of calls, stands in the answer.
    """
    return ToolFacts(
        tools=tools,
        reads_again=True,
        limit=RoundLimit.MAX_TOOL_CALLS,
        bills_as=kind,
        is_counted=kind is not None or usd == _NO_FEE,
        most_call_usd=usd,
        source=source,
        is_made_at_once=is_made_at_once,
    )


_OPENAI_RESPONSES = ToolsAt(
    caps_all_rounds=True,
    source=_OPENAI,
    rows=(
        ToolFacts(  # the caller runs these, and sends their results in its next request
            tools=("applypatch", "computer", "computeruse", "localshell", "shell"),
            reads_again=False,
            is_counted=True,
            most_call_usd=_NO_FEE,
            source=_OPENAI_TOOLS,
        ),
        replace(
            _openai_tool("websearchpreview", kind="web_search", usd=_OPENAI_SEARCH_USD),
            is_floor=True,
            is_cheaper_thinking=True,
        ),
        _openai_tool("websearch", kind="web_search", usd=_OPENAI_SEARCH_USD),
        _openai_tool("filesearch", kind="file_search", usd=Decimal("0.0025")),
        *(_openai_tool(CODE_INTERPRETER + size, usd=usd) for size, usd in CONTAINER_SIZES.items()),
        _openai_tool(
            *(CODE_INTERPRETER + ANY_SIZE, "containerauto", "containerreference"),
            usd=CONTAINER_SIZES["64g"],
        ),
        _openai_tool(
            CODE_INTERPRETER, kind="code_interpreter", usd=Decimal("0.03"), is_made_at_once=True
        ),
        _openai_tool("imagegeneration", kind="image_generation", source=_OPENAI),
        _openai_tool("mcp", usd=_NO_FEE, source=_OPENAI),
        replace(
            _openai_tool("toolsearch", usd=_NO_FEE, source=f"{_OPENAI}; {_OPENAI_FINDS}"),
            finds_in_body=True,
        ),
        ToolFacts(  # a stored prompt may have any of these
            tools=("prompt",),
            reads_again=None,
            limit=RoundLimit.MAX_TOOL_CALLS,
            bills_as="web_search",
            is_counted=True,
            most_call_usd=_OPENAI_SEARCH_USD,
            source=_OPENAI,
        ),
        ToolFacts(  # every tool that OpenAI runs is a built-in one
            tools=("",), reads_again=None, limit=RoundLimit.MAX_TOOL_CALLS, source=_OPENAI
        ),
    ),
)
# Any server of OpenAI's dialect leaves these to the caller.
UNKNOWN_TOOLS_AT = ToolsAt(
    rows=(
        ToolFacts(
            tools=("applypatch", "localshell"),
            reads_again=False,
            is_counted=True,
            most_call_usd=_NO_FEE,
            source=_OPENAI_TOOLS,
        ),
        UNKNOWN_TOOL,
    )
)
_CHAT_SEARCH = ToolFacts(
    tools=(),
    members=("websearchoptions",),
    reads_again=None,
    most_rounds=1,
    bills_as="web_search",
    most_call_usd=_OPENAI_SEARCH_USD,
    source=f"{_OPENAI_SEARCH}; {_OPENAI_PRICES}",
)
_OPENAI_CHAT = ToolsAt(rows=(_CHAT_SEARCH, UNKNOWN_TOOL))
# "Returned when the server-side sampling loop reaches its iteration limit while executing server
# tools ... The default limit is 10 iterations per request."
_ANTHROPIC_LOOP = "platform.claude.com/docs/en/build-with-claude/handling-stop-reasons, 2026-11-28"
_ANTHROPIC_TOOLS = "anthropic 2.14.0, types/beta/beta_tool_union_param.py, 2026-11-28"
_ANTHROPIC_PRICES = "platform.claude.com/docs/en/about-claude/pricing, 2026-11-28"
_ANTHROPIC_SEARCHES = ("toolsearchtool", "toolsearchtoolbm25", "toolsearchtoolregex")
_ANTHROPIC = ToolsAt(
    most_rounds=10,
    source=_ANTHROPIC_LOOP,
    rows=(
        ToolFacts(
            tools=("bash", "computer", "memory", "texteditor"),
            reads_again=False,
            is_counted=True,
            most_call_usd=_NO_FEE,
            source=_ANTHROPIC_TOOLS,
        ),
        ToolFacts(
            tools=("websearch20250305",),
            reads_again=True,
            limit=RoundLimit.MAX_USES,
            bills_as="web_search",
            is_counted=True,
            most_call_usd=Decimal("0.01"),
            source=f"{_ANTHROPIC_TOOLS}; {_ANTHROPIC_PRICES}",
        ),
        ToolFacts(
            tools=("webfetch20250910",),
            reads_again=True,
            limit=RoundLimit.MAX_USES,
            is_counted=True,
            most_call_usd=_NO_FEE,
            source=f"{_ANTHROPIC_TOOLS}; {_ANTHROPIC_PRICES}",
        ),
        # Later versions run code of the model's between the searches, which `max_uses` does not
        # bound; that code costs nothing there.
        ToolFacts(
            tools=("websearch",),
            reads_again=True,
            bills_as="web_search",
            is_counted=True,
            most_call_usd=Decimal("0.01"),
            source=f"{_ANTHROPIC_TOOLS}; {_ANTHROPIC_PRICES}",
        ),
        ToolFacts(
            tools=("webfetch", "mcptoolset", *_ANTHROPIC_SEARCHES),
            members=("mcpservers",),
            reads_again=True,
            is_counted=True,
            most_call_usd=_NO_FEE,
            source=f"{_ANTHROPIC_TOOLS}; {_ANTHROPIC_PRICES}",
        ),
        # USD 0.05 an hour of a container, "tracked separately from token usage".
        ToolFacts(
            tools=("codeexecution",),
            members=("container", "skills"),
            reads_again=True,
            bills_as="code_interpreter",
            most_call_usd=Decimal("0.05"),
            source=_ANTHROPIC_PRICES,
        ),
        ToolFacts(tools=("",), reads_again=None, source=_ANTHROPIC_TOOLS),
    ),
)
# "It limits the number of assistant turns ... During a single turn, the model may decide to invoke
# multiple tools in parallel"; at the limit "it will stop making additional server-side tool calls".
# The pages show it with xAI's own SDK; a client of its REST responses sends the same name
# (github.com/csells/dartantic/pull/106).
_XAI = "docs.x.ai/developers/tools/tool-usage-details, 2026-11-28"
_XAI_PRICES = "docs.x.ai/developers/pricing, 2026-11-28"


def _xai_tool(*tools: str, kind: str | None, usd: str | None, is_floor: bool = False) -> ToolFacts:
    """Return a row of xAI's tools: all are bounded and counted in the same way."""
    return ToolFacts(
        tools=tools,
        reads_again=True,
        limit=RoundLimit.MAX_TURNS,
        bills_as=kind,
        is_counted=kind is not None or usd == "0",
        most_call_usd=None if usd is None else Decimal(usd),
        is_floor=is_floor,
        source=f"{_XAI}; {_XAI_PRICES}",
    )


# "When you attach files to a chat message, the xAI API implicitly adds the attachment_search
# server-side tool" (docs.x.ai/developers/files), at four times the fee of a collection's search.
_XAI_FILES = "attachmentsearch"
_XAI_RESPONSES = ToolsAt(
    source=_XAI,
    with_files=_XAI_FILES,
    rows=(
        _xai_tool(_XAI_FILES, kind="file_search", usd="0.01", is_floor=True),
        _xai_tool("websearch", kind="web_search", usd="0.005"),
        _xai_tool("xsearch", kind="x_search", usd="0.005"),
        _xai_tool("codeexecution", "codeinterpreter", kind="code_interpreter", usd="0.005"),
        _xai_tool("collectionssearch", "filesearch", kind="file_search", usd="0.01"),
        _xai_tool("mcp", kind=None, usd="0"),
        _xai_tool("imagegeneration", kind="image_generation", usd=None),
        _xai_tool("", kind=None, usd=None),
    ),
)
# "Maximum number of server-tool (e.g. `openrouter:web_search`) agent steps the model may take
# during a request. Defaults to 30, which is also the maximum. Ignored when `stop_server_tools_when`
# is set." A fusion, a subagent and an advisor are further models.
_OPENROUTER = "openrouter 1.3.84, components/responsesrequest.py, 2026-11-28"
_OTHER_MODELS = ("openrouter:fusion", "openrouter:subagent", "openrouter:advisor")
_OPENROUTER_OTHER = ToolFacts(
    tools=_OTHER_MODELS, reads_again=None, bills_as="other_model", source=_OPENROUTER
)
# A plugin "runs once per request", and which one it is the member does not say here: a search,
# whose calls the usage counts, the pages of a file, or further models.
_OPENROUTER_PLUGINS = ToolFacts(
    tools=(),
    members=("plugins",),
    reads_again=None,
    bills_as="web_search",
    source="openrouter.ai/docs/guides/features/server-tools, 2026-11-28",
)


# By its name: the kind of its calls, None for those without a fee. The usage counts the searches
# alone, so no answer states the fee of another tool. A tool that is not here may be another model.
_OPENROUTER_KINDS = {
    "datetime": None,
    "websearch": "web_search",
    "webfetch": "web_search",
    "imagegeneration": "image_generation",
    "shell": "code_interpreter",
    "": "other_model",
}
# "If you don't explicitly specify an engine, OpenRouter will default first to the model's native
# file processing capabilities, and if that's not available, we will use the mistral-ocr engine",
# at a fee by the page that no usage states.
_OPENROUTER_FILES = "fileparser"


def _openrouter_tools(limit: RoundLimit | None) -> tuple[ToolFacts, ...]:
    """Return the rows of OpenRouter's own tools in one operation."""
    return (
        _OPENROUTER_OTHER,
        ToolFacts(
            tools=(_OPENROUTER_FILES,),
            reads_again=None,
            bills_as="file_search",
            source="openrouter.ai/docs/guides/overview/multimodal/pdfs, 2026-11-29",
        ),
        *(
            ToolFacts(
                tools=(f"openrouter:{name}",),
                reads_again=True,
                limit=limit,
                most_rounds=30,
                bills_as=kind,
                is_counted=name == "websearch" or kind is None,
                most_call_usd=_NO_FEE if kind is None else None,
                source=_OPENROUTER,
            )
            for name, kind in _OPENROUTER_KINDS.items()
        ),
        _OPENROUTER_PLUGINS,
        UNKNOWN_TOOL,
    )


_OPENROUTER_RESPONSES = ToolsAt(
    rows=_openrouter_tools(RoundLimit.MAX_TOOL_CALLS),
    bounds_calls=False,
    limit_is_void_with="stop_server_tools_when",
    with_files=_OPENROUTER_FILES,
    source=_OPENROUTER,
)
_OPENROUTER_CHAT = ToolsAt(
    rows=_openrouter_tools(None),
    bounds_calls=False,
    with_files=_OPENROUTER_FILES,
    source=_OPENROUTER,
)
# "Up to 10 tool calls per request", and 1 of the mini system.
_GROQ = "console.groq.com/docs/compound/systems, 2026-11-28"
_GROQ_CHAT = ToolsAt(
    rows=(
        ToolFacts(
            tools=(),
            members=("compoundcustom", "searchsettings"),
            reads_again=True,
            most_rounds=10,
            source=_GROQ,
        ),
        UNKNOWN_TOOL,
    ),
    source=_GROQ,
)
# vLLM and SGLang read `max_tool_calls` and do not obey it: github.com/vllm-project/vllm/pull/47112
# (open, 2026-06-30) and github.com/sgl-project/sglang/pull/37265 (open, 2026-08-31).
TOOLS: Mapping[tuple[str, Operation], ToolsAt] = {
    ("openai", Operation.RESPONSES): _OPENAI_RESPONSES,
    ("azure_openai", Operation.RESPONSES): _OPENAI_RESPONSES,
    ("openai", Operation.CHAT): _OPENAI_CHAT,
    ("azure_openai", Operation.CHAT): _OPENAI_CHAT,
    ("anthropic", Operation.MESSAGES): _ANTHROPIC,
    ("xai", Operation.RESPONSES): _XAI_RESPONSES,
    ("openrouter", Operation.RESPONSES): _OPENROUTER_RESPONSES,
    ("openrouter", Operation.CHAT): _OPENROUTER_CHAT,
    ("openrouter", Operation.MESSAGES): _OPENROUTER_CHAT,
    ("groq", Operation.CHAT): _GROQ_CHAT,
}
# "Total cost per query = Token costs + Request fee (varies by search context size)".
_PERPLEXITY = "docs.perplexity.ai/getting-started/pricing; genai-prices 0.2.3, 2026-11-28"
# "low / medium: 4 agents, high / xhigh: 16 agents"; the tokens of all are billed, over rounds that
# no page counts, and `max_tokens` is not supported. A prompt of 40 tokens was billed as 39,263 and
# 9,997 of output (docs.apiyi.com/en/api-capabilities/grok/multi-agent.md).
_AGENTS = (
    "openrouter.ai/x-ai/grok-4.20-multi-agent; "
    "docs.x.ai/developers/model-capabilities/text/multi-agent, 2026-11-29"
)
_RESEARCH = (
    "docs.perplexity.ai/getting-started/pricing; openrouter.ai/openai/o3-deep-research, 2026-11-29"
)
SEARCH_MODELS = (
    SearchModels(
        models=("*multi-agent*", "*grok-*-heavy*"),
        tool=ToolFacts(
            tools=("",),
            reads_again=True,
            is_counted=True,
            most_call_usd=_NO_FEE,
            source=_AGENTS,
        ),
        agents=16,
        is_unbounded=True,
        ignores_maximum=True,
    ),
    # OpenAI itself bounds these by the tools that a request must have.
    SearchModels(
        elsewhere=frozenset({"openai", "azure_openai"}),
        models=("*deep-research*", "openrouter/fusion*"),
        tool=ToolFacts(tools=("",), reads_again=True, bills_as="web_search", source=_RESEARCH),
        is_unbounded=True,
        ignores_maximum=True,
    ),
    SearchModels(
        providers=frozenset({"openai", "azure_openai"}),
        models=("*-search-preview*", "*-search-api*"),
        tool=_CHAT_SEARCH,
    ),
    SearchModels(  # resold, or with the plugin that searches once in each request
        providers=frozenset({"openrouter"}),
        models=("openai/*-search-*", "perplexity/*", "*:online"),
        tool=ToolFacts(
            tools=("",),
            reads_again=None,
            bills_as="web_search",
            source="openrouter.ai/docs/features/web-search, 2026-11-28",
        ),
    ),
    SearchModels(
        providers=frozenset({"groq"}),
        models=("*compound*",),
        tool=_GROQ_CHAT.rows[0],
    ),
    SearchModels(
        models=("sonar", "sonar-*", "perplexity/sonar*"),
        tool=ToolFacts(
            tools=("",),
            reads_again=False,
            most_rounds=0,
            bills_as="web_search",
            most_call_usd=Decimal("0.014"),
            source=_PERPLEXITY,
        ),
        per_request=1,
    ),
)


def tools_at(provider: str, operation: Operation) -> ToolsAt:
    """Return the facts about the tools of a provider in one operation."""
    return TOOLS.get((provider, operation), UNKNOWN_TOOLS_AT)


def search_model(provider: str, model: str) -> SearchModels | None:
    """Return the entry of a model that searches, or works in rounds, by itself; None for any other
    model.
    """
    for entry in SEARCH_MODELS:
        is_there = not entry.providers or provider in entry.providers
        if provider in entry.elsewhere or not is_there:
            continue
        if any(fnmatchcase(model.lower(), pattern) for pattern in entry.models):
            return entry
    return None
