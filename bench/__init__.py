"""Costs, as ratios of two figures measured in one run on one machine: `python -m bench`."""
