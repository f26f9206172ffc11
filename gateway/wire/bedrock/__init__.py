"""AWS Bedrock's Converse dialect: requests, event streams, answers and usage."""
