"""Training scripts; each is run with `python -m training.NAME`."""
