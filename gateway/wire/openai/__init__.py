"""The OpenAI dialect: requests, answers, streams, usage, errors."""
