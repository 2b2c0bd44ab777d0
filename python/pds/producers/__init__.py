"""Pipelines: declarations, updates, versions and upkeep, and how the engine calls the functions of stages."""
