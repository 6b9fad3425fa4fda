"""An entry of the library: one name, and what a request under it means. Does no I/O."""

import msgspec

__all__ = ["Entry", "plain_name"]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One name, and what a request under it means."""

    name: str
    base: str | None = None  # a model of the config
    file: str | None = None  # below the models folder
    engine: str | None = None  # that keeps the model itself, under `source`
    source: str | None = None
    projector: str | None = None  # below the models folder: lets the model see
    embedding: bool = False
    system: str = ""
    template: str = ""
    license: str = ""
    parameters: dict[str, object] = {}
    messages: list[dict[str, object]] = []
    modified_s: float = 0.0

    @property
    def thing(self) -> tuple[str | None, str | None, str | None, str | None]:
        """What it stands for; the same for every name of one model."""
        return self.base, self.file, self.engine, self.source

    @property
    def is_plain(self) -> bool:
        """Whether requests under it are changed by nothing."""
        return not (self.system or self.parameters or self.messages)


def plain_name(name: str) -> str:
    """A name as names are compared: `foo` and `Foo:latest` are the same."""
    return name.removesuffix(":latest").casefold()
