"""A chat in OpenAI's dialect as a neutral conversation and neutral answer events, and back."""
