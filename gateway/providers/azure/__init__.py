"""The adapter of Azure OpenAI, and the access tokens of Azure's identities."""
