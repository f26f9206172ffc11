"""The pages on the records beside the bill: *Residency*, *Prices*, *Refusals* and *Audit*."""
