"""The measurements of `python -m training.benchmark`."""
