"""Producers: how a user's function is called for the groups of sorted streams, row by row or in batches."""
