"""What a model can be asked, as far as that is known without an engine; what it cannot do is refused at once.

A refusal costs nothing; the same answer from the engine would cost a load. Known are: models for embeddings (from
the config or the file's header), and everything about models that our own llama.cpp serves. What is not known is
left to the engine.
"""

from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from watchbill.catalog import Model
from watchbill.errors import RequestError
from watchbill.gateway.modelfiles import ModelFiles
from watchbill.gguf import Header
from watchbill.runtime.driver import Driver
from watchbill.runtime.ticket import Submission

__all__ = ["Abilities", "Able", "has_image"]

Ability = Literal["completion", "embedding"]

#: Arguments that make llama.cpp's server something else than the config says.
_MODES = frozenset({"--embedding", "--embeddings", "--rerank", "--reranking"})
#: Parts of a message that are images: OpenAI's two ways to say it, and Anthropic's.
_IMAGES = frozenset({"image_url", "input_image", "image"})
_REFUSALS: dict[Ability, str] = {
    "completion": "{} makes embeddings and can neither chat nor complete; ask it at /v1/embeddings",
    "embedding": "{} makes no embeddings; ask a model that has `embedding = true` in the config",
}


@dataclass(frozen=True, slots=True)
class Able:
    """What a model can do: True, False, or None where only its engine knows."""

    completion: bool | None
    embedding: bool | None
    vision: bool | None
    tools: bool | None = None

    def listed(self) -> list[str]:
        """What it surely can, in the words that clients know."""
        return [
            name for name in ("completion", "embedding", "vision", "tools") if getattr(self, name) is True
        ]


class Abilities:
    """What each model of the catalog can do. Worked out once for each definition of a model."""

    def __init__(self, driver: Driver, files: ModelFiles) -> None:
        self._driver = driver
        self._files = files
        self._known: dict[str, tuple[Model, Able]] = {}

    async def of(self, model: Model) -> Able:
        """What this model can do."""
        known = self._known.get(model.name)
        if known is not None and known[0] is model:
            return known[1]
        catalog = self._driver.catalog
        able = _able(model, catalog.engines[model.engine].driver, (await self._files.facts(model)).header)
        if len(self._known) > len(catalog.models):  # models were renamed or removed
            self._known = {name: kept for name, kept in self._known.items() if name in catalog.models}
        self._known[model.name] = (model, able)
        return able

    async def check(self, submission: Submission, ability: Ability, messages: object = None) -> Submission:
        """The submission, as it may go to the scheduler. Raises RequestError for what the model surely cannot do.

        An image is never handed down to a smaller model of the family, which may be blind."""
        catalog, name = self._driver.catalog, submission.model
        model = catalog.models.get(name) or catalog.find_model(name)  # nearly always its own name
        if model is None:
            return submission  # the scheduler says so
        known = self._known.get(model.name)  # nearly always, without a coroutine
        able = known[1] if known is not None and known[0] is model else await self.of(model)
        if (able.completion if ability == "completion" else able.embedding) is False:
            raise RequestError(_REFUSALS[ability].format(model.name))
        if (able.vision is not False and model.family is None) or not has_image(messages):
            return submission
        if able.vision is False:
            raise RequestError(f"{model.name} cannot see: the request has an image, and it takes only text")
        return msgspec.structs.replace(submission, exact=True)


def has_image(messages: object) -> bool:
    """Whether there is an image among these messages, in a part of one, or in a tool's result."""
    if not isinstance(messages, list):
        return False
    for item in cast("list[object]", messages):
        if isinstance(item, dict):
            fields = cast("dict[str, object]", item)
            if fields.get("type") in _IMAGES or fields.get("images"):  # Ollama has them beside the text
                return True
            if has_image(fields.get("content")):  # as deep as a body may be nested
                return True
    return False


def _able(model: Model, driver: str, header: Header | None) -> Able:
    sees = any(word.startswith("--mmproj") or word in ("-mm", "-mmu") for word in model.arguments)
    if model.embedding or (header is not None and header.is_embedding):
        return Able(completion=False, embedding=True, vision=False)
    if driver == "llamacpp" and not _MODES.intersection(model.arguments):
        # Without a word about tools in its template llama.cpp describes them in words of its own.
        tools = True if header is not None and header.knows_tools else None
        return Able(completion=True, embedding=False, vision=sees, tools=tools)
    return Able(completion=True, embedding=None, vision=sees or None)
