"""Drives LangChain's package for Anthropic."""

from langchain_anthropic import ChatAnthropic
from langchain_calls import serve_model
from protocol import BASE, KEY, MODEL

serve_model(ChatAnthropic(base_url=BASE, api_key=KEY, model=MODEL, max_tokens=200, max_retries=0))
