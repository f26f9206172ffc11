"""Commands of `tollgate engine` that need the policy or the price book as well as the engine."""
