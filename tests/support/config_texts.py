"""Texts of configs that several tests begin with."""

__all__ = ["SMALL_MODEL"]

#: A machine with one small model, which needs no memory to speak of.
SMALL_MODEL = """[devices.ram]
reserve = 0
[models.small]
engine = "scripted"
memory = "1MiB"
script = { touch = false }
"""
