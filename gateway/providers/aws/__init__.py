"""The adapter of AWS Bedrock, and the keys that sign its requests."""
