"""Findings: what is right in the file and still will not work on this machine."""

import re
from pathlib import Path

import pytest

import watchbill
from watchbill.config import Finding, MachineFacts, ModelFacts, examine, read_text
from watchbill.config.planned import NOT_ACTED_ON
from watchbill.units import Bytes

GB = 10**9


def findings(
    text: str, ram: int = 16 * GB, *, is_public: bool = False, **models: ModelFacts
) -> list[Finding]:
    loaded = read_text(text, base=Path("/srv"), origin="w.toml", environment={"MY_KEY": "0123456789abcdef"})
    return examine(loaded, MachineFacts({"ram": Bytes(ram)}, models, is_public))


def said(found: list[Finding], *, grave: bool) -> list[str]:
    return [str(finding.problem).removeprefix("w.toml:") for finding in found if finding.is_grave == grave]


LLAMA = '[models.a]\nengine = "llamacpp"\nsource = "a.gguf"\n'


def model(name: str, rest: str = "") -> str:
    return f'[models.{name}]\nengine = "scripted"\n{rest}\n'


def test_a_config_that_works_here_has_no_findings() -> None:
    assert findings(model("a", 'memory = "4.6GB"'), a=ModelFacts(predicted=Bytes(4 * GB))) == []


def test_a_model_that_its_file_shows_to_be_too_large_is_named_with_the_sum() -> None:
    """RES-04: the operator hears of it before the first request does."""
    found = findings(model("a"), ram=8 * GB, a=ModelFacts(predicted=Bytes(7 * GB)))
    assert said(found, grave=True) == [
        "1: models.a: can never fit: 7 GB, predicted from its file, into the 5.85 GB that ram leaves for models "
        "(8 GB less a reserve of 2GiB); take a smaller model, context or concurrency"
    ]


def test_a_cap_counts_where_it_is_lower_than_the_machine() -> None:
    text = '[devices.ram]\ncapacity = "4GB"\nbudget = 0.5\nreserve = 0\n' + model("a")
    found = findings(text, a=ModelFacts(predicted=Bytes(3 * GB)))
    assert (
        "into the 2 GB that ram leaves for models (4 GB x 0.5 less a reserve of 0B)"
        in said(found, grave=True)[0]
    )


def test_the_machine_counts_where_it_has_less_than_the_cap() -> None:
    found = findings('[devices.ram]\ncapacity = "64GB"\n' + model("a", 'memory = "20GB"'), ram=16 * GB)
    assert said(found, grave=False) == [
        "2: devices.ram.capacity: is more than the 16 GB there are, which is what counts"
    ]
    assert said(found, grave=True)[0].startswith("3: models.a: can never fit: 20 GB into the 13.9 GB")


def test_a_model_that_cannot_stand_beside_the_permanent_ones_is_named() -> None:
    """RES-02: permanent models do not leave for it, so its requests could only be refused."""
    text = model("stays", 'memory = "9GB"\npermanent = true') + model("comes", 'memory = "6GB"')
    found = findings(text)
    assert len(found) == 1
    assert said(found, grave=True)[0].startswith("5: models.comes: can never fit: 6 GB into the 13.9 GB")
    assert "beside 9 GB of permanent models" in said(found, grave=True)[0]


def test_permanent_models_that_together_exceed_the_machine_are_named() -> None:
    text = model("a", "permanent = true") + model("b", "permanent = true")
    found = findings(text, a=ModelFacts(predicted=Bytes(8 * GB)), b=ModelFacts(predicted=Bytes(8 * GB)))
    assert said(found, grave=True) == [
        " devices.ram: the permanent models need 16 GB of the 13.9 GB that ram leaves for models "
        "(16 GB less a reserve of 2GiB); make one of them rotate"
    ]


def test_what_was_seen_wrong_with_a_model_stands_at_its_key() -> None:
    found = findings(model("a"), a=ModelFacts("x.gguf is truncated; fetch it again", key="source"))
    assert said(found, grave=True) == ["1: models.a.source: x.gguf is truncated; fetch it again"]


def test_a_context_beyond_what_the_model_was_trained_on_is_named() -> None:
    """RES-02: requests get what there is; the config says more."""
    found = findings(LLAMA + "context = 9000", a=ModelFacts(context=4096))
    assert said(found, grave=True) == []
    assert said(found, grave=False) == [
        "4: models.a.context: is more than the 4096 tokens that it was trained on, which is what requests get; "
        "write context = 4096"
    ]


def test_a_device_that_nothing_here_reads_is_named() -> None:
    found = findings('[devices.gpu]\ncapacity = "24GB"\n' + model("a", 'devices = ["gpu:0"]'))
    assert said(found, grave=True) == [
        "5: models.a.devices: nothing on this machine reads gpu:0, so nothing is ever loaded there; known here: ram"
    ]


def test_cards_that_cannot_be_read_are_named_with_the_reason() -> None:
    """RES-04: the library, or the driver after an upgrade of the kernel, is what the operator can mend."""
    text = '[devices."gpu:0"]\n' + model("a", 'devices = ["gpu:0"]')
    loaded = read_text(text, base=Path("/srv"), origin="w.toml", environment={})
    found = examine(loaded, MachineFacts({"ram": Bytes(16 * GB)}, {}, no_cards="no NVIDIA driver"))
    (only,) = said(found, grave=True)
    assert only.endswith("so nothing is ever loaded there; no NVIDIA driver")


def test_a_config_without_models_is_named() -> None:
    assert said(findings(""), grave=True) == [
        " models: there is no model; add one, or fetch one with: watchbill pull qwen2.5:0.5b"
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (model("a", 'memory = "1GB"'),
         "3: models.a.memory: 1GB is much less than the 4 GB that its file predicts; "
         "leave the key out to have it predicted and measured"),
        (model("a", 'group = "g"'), "3: models.a.group: is the only model of the group g"),
        ('[models.a]\nengine = "process"\nmemory = "4GB"\ncommand = "serve --port $PORT"\n',
         "4: models.a.command: $PORT is not filled in: no shell reads this line; write ${PORT}"),
        (model("a") + '[server.keys.me]\nkey = "short"',
         "5: server.keys.me.key: is short enough to be guessed; use 16 characters or more"),
        (model("a") + '[server.keys.me]\nkey = "0123456789abcdef"',
         "5: server.keys.me.key: can be read by other users of this machine; chmod 600, or use env:NAME"),
    ],
)  # fmt: skip
def test_what_is_worth_a_look_is_said_without_failing(text: str, line: str) -> None:
    found = findings(text, a=ModelFacts(predicted=Bytes(4 * GB)), is_public="0123" in text)
    assert said(found, grave=False) == [line]
    assert said(found, grave=True) == []


def test_a_port_that_a_shell_or_the_program_itself_reads_is_right() -> None:
    """The port is also in the environment."""
    for command in (
        "sh -c 'exec serve --port $PORT'",
        "/bin/bash -c 'serve $PORT'",
        "./serve.sh",
        "serve ${PORT}",
    ):
        text = f'[models.a]\nengine = "process"\nmemory = "4GB"\ncommand = "{command}"\n'
        assert findings(text, a=ModelFacts()) == []


def test_a_key_from_the_environment_is_safe_in_a_public_file() -> None:
    assert findings(model("a") + '[server.keys.me]\nkey = "env:MY_KEY"', is_public=True) == []


def test_the_key_of_a_peer_is_examined_like_any_other() -> None:
    """RES-23: `config check` of the shipped peers.toml ended with a traceback."""
    peer = '[peers.rig]\ntheir_key = "short"\n'
    assert said(findings(model("a") + peer, is_public=True), grave=False) == [
        "5: peers.rig.their_key: is short enough to be guessed; use 16 characters or more",
        "5: peers.rig.their_key: can be read by other users of this machine; chmod 600, or use env:NAME",
    ]


def test_a_site_that_does_not_answer_is_named_by_its_own_table() -> None:
    text = model("a") + '[peers.rig]\nurl = "http://10.0.0.8:8470"\nkey = "k"\nmodels = ["big"]\n'
    loaded = read_text(text, base=Path("/srv"), origin="w.toml", environment={})
    facts = MachineFacts({"ram": Bytes(GB * 16)}, {}, silent={"@rig": "it does not answer"})
    assert said(examine(loaded, facts), grave=False) == [
        "5: peers.rig.url: it does not answer; start it, or correct the address or key"
    ]


def test_a_key_that_nothing_acts_on_yet_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted without a word it would be a promise that is not kept."""
    monkeypatch.setitem(NOT_ACTED_ON, ("devices", "*", "protect"), "does not watch processes yet")
    found = findings(model("a") + '[devices.ram]\nprotect = ["routx"]\n')
    assert said(found, grave=False) == [
        "5: devices.ram.protect: has no effect: this version of Watchbill does not watch processes yet",
    ]


def test_what_is_said_to_have_no_effect_has_none() -> None:
    """Goes red when somebody builds the feature and forgets to take its line out of `planned`."""
    package = Path(watchbill.__file__).parent
    read = [
        path for path in package.rglob("*.py") if "config" not in path.parts and path.name != "catalog.py"
    ]
    code = "\n".join(path.read_text() for path in read)
    assert [place for place in NOT_ACTED_ON if re.search(rf"\b{USED_AS[place]}\b", code)] == []


USED_AS = {
    ("devices", "*", "protect"): r"\w+\.protect",
    ("lanes", "*", "fallback"): r"\w+\.fallback",
    ("lanes", "*", "policy"): r"lane\.policy",
}
