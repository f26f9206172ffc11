"""Drives LangChain's package for OpenAI."""

from langchain_calls import serve_model
from langchain_openai import ChatOpenAI
from protocol import BASE, DIALECT, KEY, MODEL

serve_model(
    ChatOpenAI(
        base_url=f"{BASE}/v1",
        api_key=KEY,
        model=MODEL,
        max_retries=0,
        stream_usage=True,
        use_responses_api=DIALECT == "responses",
    )
)
