"""Messages about budgets and spikes: their texts, and the rules of their delivery."""
