"""The golden transcripts before outside judges: litellm reads the usage of every upstream answer, and the
providers' own SDKs check each shape that we send or answer.

    make oracles        # installs the judges into an environment of their own, beside the main one

| module | responsibility |
|---|---|
| `transcripts.py` | the golden transcripts as files; imports nothing of the gateway |
| `replay.py` | a loopback server that answers with a transcript's upstream bytes |
| `outside_usage.py` | each usage as litellm reads it from that server, beside the hand-checked one |
| `outside_shapes.py` | requests and answers against the SDKs' types and botocore's model |
| `mixed_streams.py` | chat streams with mixed calls, text and thoughts, and their translations |
| `outside_streams.py` | these before the SDKs' own stream helpers, in TypeScript (`streams.mjs`) if `make clients` installed it |
| `foreign_answers.py` | answers of each upstream dialect with any content, plain and streamed, and their translations |
| `outside_schemas.py` | these before the published schemas and the SDKs' types, whole and event by event |
| `outside_answers.py` | the answers of a running gateway before llm-comply: three callers, each target of another dialect |
| `outside_sdk_tests.py` | the tests of Anthropic's SDK, from its source distribution, before a running gateway |
| `disagreements.json` | each count that litellm reads otherwise: who is right, and why |
| `requests/` | generated conversations, translated, before the targets' published rules; a few in `make test`, 20,000 by `make request-oracle` |

The names of the other test modules keep them out of `make test`.
"""  # noqa: E501
