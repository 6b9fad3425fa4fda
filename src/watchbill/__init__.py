"""Watchbill: who stands at which station, and when, for local language models."""

__version__ = "0.1.0"
