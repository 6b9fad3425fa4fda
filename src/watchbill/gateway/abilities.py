"""What a model can be asked, as far as that is known without an engine; what it cannot do is refused at once.

A refusal costs nothing; the same answer from the engine would cost a load. Known are: models for embeddings (from
the config or the file's header), and everything about models that our own llama.cpp serves. What is not known is
left to the engine.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

import msgspec

from watchbill.catalog import Model
from watchbill.errors import RequestError
from watchbill.gateway.dialects.ollama.request import as_options
from watchbill.gateway.forced_calls import ForcedCall, is_forced, messages_of, with_calls_in_words
from watchbill.gateway.lifting import Lifted
from watchbill.gateway.modelfiles import Facts, ModelFiles
from watchbill.gateway.prompt_room import PromptRoom, prompt_room_of
from watchbill.gateway.shapes import for_llamacpp, for_ollama
from watchbill.gateway.typed import is_word, object_of
from watchbill.gguf import Header
from watchbill.runtime.driver import Driver
from watchbill.runtime.library import Entry, Library
from watchbill.runtime.ticket import Submission

__all__ = ["Abilities", "Able", "Allowed", "has_audio", "has_image"]

Ability = Literal["completion", "embedding"]
Fields = dict[str, object]

#: Arguments that make llama.cpp's server something else than the config says.
_MODES = frozenset({"--embedding", "--embeddings", "--rerank", "--reranking"})
#: Parts of a message that are images: OpenAI's two ways to say it, and Anthropic's.
_IMAGES = frozenset({"image_url", "input_image", "image"})
#: Parts that are sounds, in OpenAI's words.
_SOUNDS = frozenset({"input_audio"})
#: Arguments that give llama.cpp another chat template than the file's.
_TEMPLATES = ("--chat-template", "--jinja-template")
_LISTED = ("completion", "embedding", "vision", "audio", "tools", "thinking", "insert")
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
    audio: bool | None = None
    thinking: bool | None = None
    insert: bool | None = None  # fills in a text between two others
    is_llamacpp: bool = False  # hosted by our own, which forces calls by a grammar
    is_ollama: bool = False  # hosted by an Ollama, which knows tools and cannot be made to call one
    room: PromptRoom | None = None  # for a prompt, where that is known

    def listed(self) -> list[str]:
        """What it surely can, in the words that clients know."""
        return [name for name in _LISTED if getattr(self, name) is True]


class Allowed(NamedTuple):
    """A chat that a model may be asked."""

    submission: Submission
    chat: Fields
    forced: ForcedCall | None = None  # the call that is made of its answer


class Abilities:
    """What each model of the catalog can do. Worked out once for each definition of a model."""

    def __init__(self, driver: Driver, files: ModelFiles, library: Library | None = None) -> None:
        self._driver = driver
        self._files = files
        self._library = library
        self._known: dict[str, tuple[Model, Able]] = {}

    async def of(self, model: Model) -> Able:
        """What this model can do."""
        if (known := self._at_hand(model)) is not None:
            return known
        catalog = self._driver.catalog
        driver, facts = catalog.engines[model.engine].driver, await self._files.facts(model)
        able = _able(model, driver, facts)
        if driver == "ollama" and facts.abilities is None:
            return able  # it did not answer, and may the next time
        if len(self._known) > len(catalog.models):  # models were renamed or removed
            self._known = {name: kept for name, kept in self._known.items() if name in catalog.models}
        self._known[model.name] = (model, able)
        return able

    async def check(self, submission: Submission, ability: Ability, messages: object = None) -> Submission:
        """The submission, as it may go to the scheduler. Raises RequestError for what the model surely cannot do.

        An image is never handed down to a smaller model of the family, which may be blind."""
        model = self._model(submission)
        if model is None:
            return submission  # the scheduler says so
        return _checked(model, self._at_hand(model) or await self.of(model), submission, ability, messages)

    def _model(self, submission: Submission) -> Model | None:
        catalog, name = self._driver.catalog, submission.model
        return catalog.models.get(name) or catalog.find_model(name)  # nearly always its own name

    def _at_hand(self, model: Model) -> Able | None:
        """What this model can do, where that was worked out: nearly always, and without a coroutine."""
        known = self._known.get(model.name)
        return known[1] if known is not None and known[0] is model else None

    def check_room(self, submission: Submission, body: Fields, size: int, lifted: Lifted | None) -> None:
        """Raises SurelyTooLong for a prompt, in a body of `size` bytes, that the model has no room for."""
        model = self._model(submission)
        able = None if model is None else self._at_hand(model)
        if model is not None and able is not None and able.room is not None and size > able.room.bytes:
            able.room.check(model.name, body, lifted)

    async def allow(
        self, submission: Submission, chat: Fields, size: int = 0, lifted: Lifted | None = None
    ) -> Allowed:
        """A chat, of a body of `size` bytes, as a model may be asked it. Raises RequestError for what the model surely
        cannot do, and SurelyTooLong.

        A call that must be made is forced where the model's template knows no tools and its engine can, and where its
        engine cannot be made to call; one that need not be made is left to the engine. Tools are refused where the
        config says that the model has none."""
        if self._library is not None and (entry := self._library.find(submission.model)) is not None:
            chat = _dressed(chat, entry)
        model = self._model(submission)
        if model is None:
            return Allowed(submission, chat)  # the scheduler says so
        able = self._at_hand(model) or await self.of(model)
        submission = _checked(model, able, submission, "completion", chat.get("messages"))
        if able.room is not None and size > able.room.bytes:
            able.room.check(model.name, chat, lifted)
        chat = _as_understood(chat, model, able)
        if able.audio is False and has_audio(chat.get("messages")):
            raise RequestError(f"{model.name} does not accept audio, and the request contains some")
        if able.tools is False:
            _check_tools(chat, model, able)
        elif not (able.is_ollama and is_forced(chat)):
            return Allowed(submission, chat)
        if not is_forced(chat):
            return Allowed(submission, _in_words(chat))
        forced = ForcedCall(chat)
        exact = msgspec.structs.replace(submission, exact=True)  # another model may know tools by itself
        return Allowed(exact, forced.ask(), forced)


def _checked(
    model: Model, able: Able, submission: Submission, ability: Ability, messages: object
) -> Submission:
    """The submission, with the model bound where a smaller one might be blind. Raises RequestError."""
    if (able.completion if ability == "completion" else able.embedding) is False:
        raise RequestError(_REFUSALS[ability].format(model.name))
    if (able.vision is not False and model.family is None) or not has_image(messages):
        return submission
    if able.vision is False:
        raise RequestError(f"{model.name} cannot see: the request has an image, and it takes only text")
    return msgspec.structs.replace(submission, exact=True)


def _as_understood(chat: Fields, model: Model, able: Able) -> Fields:
    """A chat in words that its engine understands. Raises RequestError for what the engine would pass over."""
    if able.is_llamacpp:
        return for_llamacpp(chat, model.name)
    return for_ollama(chat, model.name) if able.is_ollama else chat


def _check_tools(chat: Fields, model: Model, able: Able) -> None:
    """Raises RequestError for tools that a model without them is offered: where the config says so, or a call of one is
    demanded and nothing can force it."""
    wants_tools = bool(chat.get("tools")) and chat.get("tool_choice") != "none"
    if wants_tools and (model.abilities is not None or (is_forced(chat) and not able.is_llamacpp)):
        raise RequestError(
            f"{model.name} cannot use tools; leave them out, or ask a model that lists tools at /v1/models"
        )


def _dressed(chat: Fields, entry: Entry) -> Fields:
    """A chat or completion with what a name of the library brings, under the fields that it leaves open."""
    told = as_options(entry.parameters) | chat
    messages = chat.get("messages")
    if not isinstance(messages, list) or not messages:
        return told
    listed = cast("list[object]", messages)
    first = object_of(listed[0])
    is_own = not entry.system or first.get("role") in ("system", "developer")
    system = [] if is_own else [{"role": "system", "content": entry.system}]
    return {**told, "messages": [*system, *entry.messages, *listed]}


def _in_words(chat: Fields) -> Fields:
    """A chat with the calls of earlier turns as texts, where it has some."""
    messages = chat.get("messages")
    listed = cast("list[object]", messages) if isinstance(messages, list) else []
    if not any(
        isinstance(each, dict) and ("tool_calls" in each or "tool_call_id" in each) for each in listed
    ):
        return chat
    return {**chat, "messages": with_calls_in_words(messages_of(chat))}


def has_image(messages: object) -> bool:
    """Whether there is an image among these messages, in a part of one, or in a tool's result."""
    return _has(messages, _IMAGES)


def has_audio(messages: object) -> bool:
    """Whether there is a sound among these messages."""
    return _has(messages, _SOUNDS)


def _has(messages: object, kinds: frozenset[str]) -> bool:
    if not isinstance(messages, list):
        return False
    for item in cast("list[object]", messages):
        if isinstance(item, dict):
            fields = cast("Fields", item)
            if is_word(fields.get("type"), kinds) or (
                kinds is _IMAGES and fields.get("images")
            ):  # Ollama: beside the text
                return True
            if _has(fields.get("content"), kinds):  # as deep as a body may be nested
                return True
    return False


def _able(model: Model, driver: str, facts: Facts) -> Able:
    told = facts.abilities
    found = _found(model, driver, facts.header) if told is None else _told(told)
    found = replace(found, is_ollama=driver == "ollama")
    if model.abilities is None or not found.completion:
        return found
    declared = {name: name in model.abilities for name in ("tools", "vision", "audio", "thinking", "insert")}
    return replace(found, **declared)


def _told(abilities: frozenset[str]) -> Able:
    """What an Ollama says that a model can."""
    return Able(
        completion="completion" in abilities,
        embedding=True if "embedding" in abilities else None,
        vision="vision" in abilities,
        tools="tools" in abilities,
        audio="audio" in abilities,
        thinking="thinking" in abilities,
        insert="insert" in abilities,
    )


def _found(model: Model, driver: str, header: Header | None) -> Able:
    """What a model can do by what is known of it."""
    sees = any(word.startswith("--mmproj") or word in ("-mm", "-mmu") for word in model.arguments)
    room = prompt_room_of(model, header) if driver == "llamacpp" else None
    if model.embedding or (header is not None and header.is_embedding):
        return Able(completion=False, embedding=True, vision=False, room=room)
    if driver == "llamacpp" and not _MODES.intersection(model.arguments):
        own = header if not any(word.startswith(_TEMPLATES) for word in model.arguments) else None
        return Able(
            completion=True,
            embedding=False,
            vision=sees,
            tools=None if own is None else own.knows_tools,
            audio=None if sees else False,  # a projector may be one for sounds
            thinking=None if own is None else own.knows_thinking,
            insert=True if header is not None and header.knows_insert else None,
            is_llamacpp=True,
            room=room,
        )
    return Able(completion=True, embedding=None, vision=sees or None)
