"""Pipelines: the model, and the tests that compare with it."""
