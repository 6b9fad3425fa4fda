"""Ollama's dialect: / and /api."""
