"""Programs that run inside the engine's own environment, started by path: they import torch."""
