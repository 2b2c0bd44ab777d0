"""Schedules of publishers, readers and late requests, on the wire."""
