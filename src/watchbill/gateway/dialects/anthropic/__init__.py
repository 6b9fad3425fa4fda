"""Anthropic's dialect: /v1/messages."""
