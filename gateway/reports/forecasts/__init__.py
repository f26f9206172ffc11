"""Reports that look ahead or at odd days: `forecast`, `outlook` and `spikes`."""
