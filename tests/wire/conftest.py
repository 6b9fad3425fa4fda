"""What the wire tests share."""

from gguf_models import gguf_files

__all__ = ["gguf_files"]
