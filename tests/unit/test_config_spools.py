"""`[spool.NAME]`: what a spool of the config means, and what is wrong about it."""

import tomllib
from pathlib import Path

import jsonschema_rs
import pytest

from watchbill import catalog
from watchbill.config import examine, parse, read_text
from watchbill.config.examine import MachineFacts
from watchbill.config.reference import schema
from watchbill.config.show import show
from watchbill.errors import ConfigError
from watchbill.units import Millis

BASE = Path("/srv/watchbill")
MODEL = '[models.a]\nengine = "scripted"\n'


def spool(text: str, name: str = "notes") -> catalog.SpoolRules:
    found = parse(f"{MODEL}[spool.{name}]\n{text}\n", base=BASE, origin="w.toml", environment={})
    return found.spools[name]


def complaints(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, base=BASE, origin="w.toml", environment={})
    return [line.removeprefix("w.toml:") for line in str(caught.value).splitlines()]


def test_a_spool_without_a_word_has_the_documented_defaults() -> None:
    """SPOOL-04, SPOOL-06, SPOOL-12: 1 s, 3 attempts, 7 days; folder and corpus by its name."""
    assert spool("") == catalog.SpoolRules("notes", "spool/notes", {"*": "corpus/notes.jsonl"})
    assert spool("").poll_ms == 1_000
    assert spool("").attempts == 3
    assert spool("").keep_done_ms == 7 * 86_400_000


def test_every_key_reaches_the_catalog() -> None:
    found = spool(
        """
path = "spool/corpus"
corpus = { "draft-created" = "corpus/drafts.jsonl", "*" = "/data/rest.jsonl" }
schema = "event.schema.json"
id_key = "key"
attempts = 5
poll = "250ms"
workers = 4
ordered = true
durability = "event"
drain = false
keep_done = "30d"
archive = "archive"
verify = ["keys/a.pem", "/b.pem"]
sign = "keys/me.pem"
kinds = { "creative/*" = "creative-edited", "*.md" = "draft" }
"""
    )
    assert found == catalog.SpoolRules(
        "notes",
        "spool/corpus",
        {"draft-created": "corpus/drafts.jsonl", "*": "/data/rest.jsonl"},
        schema="/srv/watchbill/event.schema.json",
        id_key="key",
        attempts=5,
        poll_ms=Millis(250),
        workers=4,
        ordered=True,
        durability="event",
        drain=False,
        keep_done_ms=Millis(30 * 86_400_000),
        archive="archive",
        verify=("/srv/watchbill/keys/a.pem", "/b.pem"),
        sign="/srv/watchbill/keys/me.pem",
        kinds=(("creative/*", "creative-edited"), ("*.md", "draft")),
    )


def test_what_watchbill_writes_is_relative_to_its_root_and_what_it_reads_to_the_config() -> None:
    found = spool('path = "here"\ncorpus = "there.jsonl"\nschema = "s.json"')
    assert (found.path, dict(found.corpora)) == ("here", {"*": "there.jsonl"})
    assert found.schema == "/srv/watchbill/s.json"
    assert [spool(f'schema = "{word}"').schema for word in ("builtin", "any")] == ["builtin", "any"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("attempts = 0", "4: spool.x.attempts: must be at least 1"),
        ('poll = "never"', "4: spool.x.poll: 'never' is not a duration; write for example 30s, 5m or 1h30m"),
        ("workers = 65", "4: spool.x.workers: must be at most 64"),
        ('durability = "wall"',
         '4: spool.x.durability: must be one of wal, event, none, not "wall"; did you mean wal?'),
        ("corpus = 3", "4: spool.x.corpus: must be a file, or a table of files by kind; "
         'write for example "corpus/corpus.jsonl"'),
        ("corpus = {}", "4: spool.x.corpus: must not be empty; name a file, or leave the key out"),
        ("corpus = { a = 1 }", "4: spool.x.corpus.a: must name a file for each kind; write for example "
         '{ "draft-created" = "corpus/drafts.jsonl", "*" = "corpus/rest.jsonl" }'),
        ("kinds = { a = 1 }", "4: spool.x.kinds.a: must name a kind for each path; "
         'write for example { "creative/*" = "creative-edited" }'),
        ('crpus = "x"', "4: spool.x.crpus: is not a key that Watchbill knows; did you mean corpus?"),
        ('corpus = "spool/x/queue/c.jsonl"',
         "4: spool.x.corpus: lies inside its own spool; put it beside the spool's folder"),
        ('corpus = { "*" = "spool/y/../x/c.jsonl" }',
         '4: spool.x.corpus."*": lies inside its own spool; put it beside the spool\'s folder'),
        ('path = "~nobody-here-at-all/x"',
         "4: spool.x.path: '~nobody-here-at-all/x' cannot be a path; there is no such home folder"),
        ('[spool.y]\npath = "spool/x"', "5: spool.y.path: is the folder of the spool x, too; choose another"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(text: str, line: str) -> None:
    assert complaints(f"{MODEL}[spool.x]\n{text}\n") == [line]


def test_a_spool_is_shown_with_its_defaults_and_reads_back() -> None:
    text = f'{MODEL}[spool.notes]\ncorpus = {{ a = "a.jsonl" }}\nkinds = {{ "x/*" = "y" }}\n'
    loaded = read_text(text, base=BASE, origin="w.toml", environment={})
    shown = "\n".join(show(loaded))
    assert 'path = "spool/notes"' in shown
    assert parse(shown, base=BASE, origin="w.toml", environment={}).spools == loaded.catalog.spools


def test_only_the_spools_are_read_where_only_they_matter() -> None:
    """A command on a spool does not fail for an API key that is not set, or a model that is wrong."""
    text = '[server.keys.me]\nkey = "env:NIX"\n[models.a]\nengine = "nix"\n[spool.notes]\n'
    loaded = read_text(text, base=BASE, origin="w.toml", environment={}, only=("spool",))
    assert list(loaded.catalog.spools) == ["notes"]
    assert len(complaints(text)) == 2


def test_a_schema_or_key_that_cannot_be_used_is_a_grave_finding() -> None:
    loaded = read_text(f'{MODEL}[spool.x]\nschema = "nix.json"\n', base=BASE, origin="w.toml", environment={})
    facts = MachineFacts({}, {}, spools={"x": ("schema", "nix.json is no usable JSON Schema")})
    (finding,) = examine(loaded, facts)
    assert finding.is_grave
    assert str(finding.problem) == "w.toml:4: spool.x.schema: nix.json is no usable JSON Schema"


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ('[spool.a]\ncorpus = "x"\nschema = "any"', True),
        ('[spool.a]\ncorpus = { a = "x" }', True),
        ("[spool.a]\ncorpus = 1", False),
        ("[spool.a]\ncorpus = {}", False),
        ("[spool.a]\nkinds = { a = 1 }", False),
        ('[spool.a]\nschema_file = "x"', False),
    ],
)
def test_the_schema_tells_right_from_wrong_as_the_reader_does(text: str, is_valid: bool) -> None:
    assert jsonschema_rs.validator_for(schema()).is_valid(tomllib.loads(text)) == is_valid


NATS = f'{MODEL}[spool.x]\nbackend = "nats"\n'


def test_a_spool_on_nats_knows_its_servers_and_its_secret() -> None:
    """SPOOL-08: every key of [nats] reaches the catalog; a secret comes from the environment and is not shown."""
    text = (
        f'{NATS}stream = "jobs"\nlease = "10s"\n[nats]\nservers = ["nats://a:4222", "tls://b"]\nuser = "me"\n'
        'password = "env:SECRET"\nca = "ca.pem"\ncertificate = "/me.pem"\nkey = "me.key"\n'
        'replicas = 3\ntimeout = "5s"\n'
    )
    loaded = read_text(text, base=BASE, origin="w.toml", environment={"SECRET": "sesame"})
    found = loaded.catalog.spools["x"]
    assert (found.backend, found.stream, found.lease_ms) == ("nats", "jobs", 10_000)
    assert found.nats == catalog.NatsRules(
        ("nats://a:4222", "tls://b"), "me", "sesame", ca="/srv/watchbill/ca.pem", certificate="/me.pem",
        key="/srv/watchbill/me.key", replicas=3, timeout_ms=Millis(5_000), variables=frozenset({"SECRET"}),
    )  # fmt: skip
    words = read_text(text, base=BASE, origin="w.toml", environment={"SECRET": "open sesame, bitte schön"})
    assert words.catalog.spools["x"].nats.password == "open sesame, bitte schön", "it travels in no header"
    assert "SECRET" in loaded.catalog.server.key_variables
    assert "sesame" not in repr(found) and "sesame" not in "\n".join(show(loaded))
    assert catalog.stream_of("a.b") == "watchbill_a_b"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('stream = "a b"', "5: spool.x.stream: is no name of a stream; use letters, digits, - and _, at most 128"),
        ('durability = "event"',
         "5: spool.x.durability: means nothing with backend nats: the servers decide it (sync_interval: always); "
         "remove it"),
        ('archive = "old"',
         "5: spool.x.archive: cannot be used with backend nats: the servers delete finished events; remove it"),
        ('stream = "s"\n[spool.y]\nbackend = "nats"\nstream = "s"',
         "8: spool.y.stream: is the stream of the spool x, too; choose another"),
        ('[nats]\nservers = ["http://a"]',
         "6: nats.servers[0]: must be the address of a NATS server; "
         'write for example "nats://10.0.0.5:4222", or "tls://..." for an encrypted connection'),
        ('[nats]\nservers = ["nats://a"]\ntoken = "env:NOT_SET"',
         "7: nats.token: the environment variable 'NOT_SET' is not set; export NOT_SET=... before starting"),
        ('[nats]\nservers = ["nats://a"]\nuser = "me"',
         "7: nats.user: means nothing without password; add password = ..., or remove it"),
        ('[nats]\nservers = ["nats://a"]\ntoken = "0123456789abcdef"\ncredentials = "c"',
         "8: nats.credentials: stands beside token; choose one way to identify this machine"),
        ("[nats]\nreplicas = 3",
         "6: nats.replicas: means nothing without servers; the server of --with-nats needs none of it; "
         'add servers = ["nats://..."], or remove it'),
    ],
)  # fmt: skip
def test_what_is_wrong_with_nats_is_said_with_its_line(text: str, line: str) -> None:
    assert complaints(f"{NATS}{text}\n") == [line]
