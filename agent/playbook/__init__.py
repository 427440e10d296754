"""Rewrites that are found in compiled code and counters, and written as source."""
