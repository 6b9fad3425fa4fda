"""Matching: which agent may run which task, which task is next, and which agents need another model. Pure."""
