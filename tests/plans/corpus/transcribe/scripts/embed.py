"""Stands in for a script of the plan."""
