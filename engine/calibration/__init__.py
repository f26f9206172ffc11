"""Measures the engine time of an input, a cached input and an output token by a designed
experiment on a running engine; `command.py` is `python -m engine calibrate`.

`design.py` draws the load, `experiment.py` runs it, `cost_model.py` fits the weights and tests
them, `least_squares.py` and `student.py` hold the statistics, `report.py` puts the result together.
"""
