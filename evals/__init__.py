"""Suites that score the agent."""
