"""The page in a real Chromium, in front of a real daemon: what it shows, every button, and what it must never do."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copytree
from threading import Thread

import pytest

from e2e.place import Daemon, Place, scripted
from gguf_models import GgufFiles, gguf_files
from support.browser import CHROMIUM, Browser, Page, browser
from support.eventually import wait_until
from watchbill.journal import json_line
from watchbill.spool import Spool

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt install chromium"),
    pytest.mark.xdist_group("page"),
]

__all__ = ["gguf_files"]

#: Texts that would be scripts if anything took them for markup.
CORPUS = (
    "<img src=x onerror=document.title='owned'>",
    "<script>document.title='owned'</script>",
    "\"><svg onload=document.title='owned'>",
    "javascript:document.title='owned'",
    "</pre><iframe srcdoc=\"<script>parent.document.title='owned'</script>\">",
    "{{constructor.constructor('document.title=1')()}}",
    "\u202eevil\u202c \x1b[31mred",
)
EXAMPLE_PLAN = Path(__file__).resolve().parents[2] / "examples" / "plans" / "words"
VIEWS = ("now", "chat", "whatif", "journal", "spools", "plans")
CONFIG = "\n".join((
    '[devices.ram]\ncapacity = "300MB"\nreserve = "20MB"\n',
    scripted("quick", 'tokens = 4, text = "ahoy there"'),
    scripted("slow", 'service = "20s", tokens = 400', "idle = \"10m\""),
    scripted("hostile", f"tokens = {len(CORPUS)}, text = {json.dumps(' '.join(CORPUS[:4]))}"),
    scripted("broken", 'fail = "crash-on-load"'),
    scripted("large", "touch = false", "").replace("30MB", "270MB"),
    "[fleet]\nroot = \"fleet\"\n[coordinator]\n[agents.cpu-1]\ncpu_slots = 1\n",
    '[spool.notes]\npath = "spool"\ncorpus = "corpus.jsonl"\n',
))  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("page"), CONFIG)
    place.root.mkdir()
    remember(place.root / "events.jsonl")
    copytree(EXAMPLE_PLAN, place.folder / "fleet" / "plans" / "words")
    with Spool(place.root / "spool") as spool:
        for text in CORPUS:
            spool.enqueue({"kind": text, "text": text})
    yield place
    place.close()


def remember(journal: Path) -> None:
    """The journal of an earlier daemon, with texts of callers and engines in every field."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    with journal.open("wb") as file:
        for text in CORPUS:
            for event in ("load", "loaded", "evict", "died"):
                line = {"t": now, "event": event, "model": text, "device": text, "reason": text}
                file.write(json_line(line | {"ms": 5, "bytes": 7, "request": text}))


@pytest.fixture(scope="module")
def daemon(place: Place) -> Daemon:
    return place.up()


@pytest.fixture
def page(chromium: Browser, daemon: Daemon) -> Iterator[Page]:
    """A page that is live. It has asked nobody else and complained about nothing, whatever the test did."""
    page = chromium.open(f"{daemon.url}/")
    live(page)
    yield page
    judge(page, daemon)
    page.close()


def live(page: Page) -> None:
    page.until("document.querySelector('#pulse')?.dataset.state === 'live'")


def judge(page: Page, daemon: Daemon) -> None:
    assert page.value("document.title").endswith("Watchbill"), "a text was run as a script"
    own = (f"{daemon.url}/", f"blob:{daemon.url}/", "about:", "data:,")
    strangers = [url for url in page.requests if not url.startswith(own)]
    assert not strangers
    # A call that the daemon refuses is logged by Chromium itself, as a failed resource.
    assert not [each for each in page.complaints if "Failed to load resource" not in each]


def row(model: str) -> str:
    """The row of a model, by its name."""
    rows = "[...document.querySelectorAll('.model')]"
    return f"{rows}.find((e) => e.querySelector('h3').textContent === {json.dumps(model)})"


def until_state(page: Page, model: str, state: str) -> None:
    page.until(f"{row(model)}?.dataset.state === {json.dumps(state)}")


def labelled(label: str) -> str:
    return f'[aria-label="{label}"]'


def view(page: Page, name: str) -> None:
    page.click(f'nav a[href="#{name}"]')
    page.until(f"!document.querySelector('.view-{name}').hidden")


def ask_slowly(daemon: Daemon, model: str) -> Thread:
    """A caller whose answer takes long; it ends with its request, however that ends."""
    caller = Thread(target=lambda: daemon.chat(model, 400), daemon=True)
    caller.start()
    return caller


# ------------------------------------------------------------------ what it shows


def test_a_change_is_seen_within_a_second(page: Page, daemon: Daemon, place: Place) -> None:
    """From the line in the journal to the row on the screen; the best of three: the machine has other work."""
    page.value(
        "new MutationObserver((all) => { for (const each of all) if (each.target.dataset.state === 'ready')"
        " (window.seen ??= []).push(Date.now()) })"
        ".observe(document.querySelector('.models'), {subtree: true, attributeFilter: ['data-state']})"
    )
    took: list[float] = []
    for number in range(1, 4):
        count = len(place.events("loaded"))
        daemon.ask("/wb/v1/models/quick/load", {})
        page.until(f"window.seen?.length === {number}")
        line = wait_until(lambda count=count: place.events("loaded")[count:])[0]
        took.append(
            page.value(f"window.seen[{number - 1}]") / 1000 - datetime.fromisoformat(line["t"]).timestamp()
        )
        daemon.ask("/wb/v1/models/quick/evict", {})
        until_state(page, "quick", "absent")
    assert min(took) < 1, took


def test_the_bar_of_a_device_shows_models_and_the_reserve(page: Page, daemon: Daemon) -> None:
    daemon.ask("/wb/v1/models/quick/load", {})
    page.until("document.querySelector('.seg[data-state=ready] .seg-name')?.textContent === 'quick'")
    assert "reserve 20.0 MB" in page.text("#memory")
    line = page.value("document.querySelector('.reserve-line').getBoundingClientRect().left")
    left, width = page.value(
        "(({left, width}) => [left, width])(document.querySelector('.track').getBoundingClientRect())"
    )
    assert abs((line - left) / width - 280 / 300) < 0.01


def test_the_timeline_tells_why_a_model_came_and_left(page: Page, daemon: Daemon) -> None:
    daemon.ask("/wb/v1/models/quick/load", {})
    daemon.ask("/wb/v1/models/quick/evict", {})
    line = "[...document.querySelectorAll('.line')].find((e) => e.firstChild.textContent === 'quick')"
    page.until(f"[...{line}?.querySelectorAll('.stay') ?? []].some((e) => e.ariaLabel.includes('operator'))")

    def is_told() -> bool:
        page.hover(f"{line}.querySelector('.stay:last-child')")  # it is narrow, and moves with the time
        return "quick" in page.text(".tip")

    wait_until(is_told)
    assert " to " in page.text(".tip")


def test_the_last_day_is_there_after_a_restart(page: Page) -> None:
    """Lines that an earlier daemon wrote are bars of the timeline, up to the start of this one."""
    page.until("[...document.querySelectorAll('.line-name')].some((e) => e.textContent.includes('onerror'))")
    assert page.until("document.querySelectorAll('.marks i').length") >= 1


# ------------------------------------------------------------------ every button


def test_models_are_loaded_pinned_and_unloaded(page: Page, daemon: Daemon) -> None:
    page.click(labelled("Load quick"))
    until_state(page, "quick", "ready")
    page.click(labelled("Pin quick"))
    page.until(f"{row('quick')}.innerText.includes('pinned')")
    assert daemon.model("quick")["permanent"]
    page.click(labelled("Unpin quick"))
    page.until(f"!{row('quick')}.innerText.includes('pinned')")
    page.click(labelled("Unload quick"))
    until_state(page, "quick", "absent")
    page.click(labelled("Load broken"))
    page.until_text("exited with status 1", "#models")


def test_a_request_is_explained_and_cancelled(page: Page, daemon: Daemon) -> None:
    callers = [ask_slowly(daemon, "slow"), ask_slowly(daemon, "slow")]
    page.until("document.querySelectorAll('.request').length === 2")
    page.until_text("tokens/s", "#requests")
    page.until_text("in line", "#requests")
    page.click('.request[data-state="waiting"] .quiet')
    page.until_text("slow serves 1 at a time", "dialog")
    assert "Policy" in page.until(
        "document.querySelector('dialog')?.innerText.includes('Policy') && 'Policy'"
    )
    page.click("dialog .dialog-head button")
    page.until("!document.querySelector('dialog')")
    for _ in callers:
        count = page.value("document.querySelectorAll('.request').length")
        page.click(".request .hand button:last-child")
        page.until(f"document.querySelectorAll('.request').length < {count}")
    for caller in callers:
        caller.join(10)
        assert not caller.is_alive()
    page.until_text("No request waits", "#requests")


def test_a_log_is_followed_and_a_model_explained(page: Page, daemon: Daemon, place: Place) -> None:
    page.click(labelled("Explain large"))
    page.until_text("If it were asked for now", "dialog")
    page.press("Escape")
    page.until("!document.querySelector('dialog')")
    daemon.ask("/wb/v1/models/quick/load", {})
    page.click(labelled("Log of quick"))
    page.until_text("---", "dialog .log")
    with (place.root / "logs" / "quick.log").open("a") as log:
        log.write("".join(f"{text}\n" for text in CORPUS))
    page.until_text("onerror", "dialog .log")
    assert page.value("document.querySelectorAll('dialog .log *').length") == 0, "lines are text"
    page.press("Escape")


def test_a_device_is_lent_and_given_back(page: Page, daemon: Daemon) -> None:
    page.click(labelled("Maintenance of ram"))
    page.until("document.activeElement?.name === 'for'")
    page.write(CORPUS[0])
    page.click("dialog button.main")
    page.until_text("in maintenance", "#memory")
    wait_until(lambda: daemon.status()["devices"]["ram"]["maintenance"])
    page.click(labelled("End maintenance of ram"))
    page.until("!document.querySelector('#memory').innerText.includes('in maintenance')")


def test_poison_is_looked_at_and_goes_back(page: Page) -> None:
    view(page, "spools")
    page.click(labelled("Poisoned events of notes"))
    page.until(f"document.querySelectorAll('.poison details').length === {len(CORPUS)}")
    page.click(".poison summary")
    page.until_text("onerror", ".poison details[open] .log")
    page.click(".poison details[open] > button")
    page.until_text("went back", "#toasts")
    page.click(".poison .panel-head button")
    page.until("document.querySelector('#toasts').innerText.split('went back').length > 2")
    assert page.value("document.querySelectorAll('.poison .log *').length") == 0, "events are text"


def test_two_models_answer_side_by_side(page: Page) -> None:
    view(page, "chat")
    page.click("#chat .check input")
    page.value(
        "(() => { const [a, b] = document.querySelectorAll('.seat select'); a.value = 'hostile'; b.value = 'slow' })()"
    )
    page.click("#chat textarea")
    page.write(CORPUS[1])
    page.press("Enter")
    page.until_text("onerror", ".seat:first-child .theirs")
    page.until_text("tokens/s", ".seat:first-child")
    page.until_text("slow", ".seat:last-child .theirs")
    page.click("#chat form .hand button:nth-child(2)")  # stop
    page.until("!document.querySelector('#chat button.main').disabled")
    page.click("#chat form .hand button:last-child")
    assert page.value("document.querySelectorAll('.talk p').length") == 0


def test_more_memory_is_simulated_in_one_click(page: Page, daemon: Daemon, place: Place) -> None:
    """The traffic that was just recorded: figures side by side with what was, and the timelines as a picture."""
    assert daemon.chat("quick")[0] == 200
    wait_until(
        lambda: "quick" in "".join(each.read_text() for each in (place.root / "traffic").glob("*.jsonl"))
    )
    view(page, "whatif")
    page.click("#whatif button.main")
    page.until("document.querySelectorAll('.figures-table tbody td').length > 0")
    assert "8 GB more on ram" in page.text(".figures-table thead") and "recorded" in page.text(
        ".figures-table thead"
    )
    page.until("document.querySelector('.whatif-picture img')?.naturalWidth > 0")
    page.value("location.reload()")
    live(page)
    page.until("document.querySelector('.whatif-picture img')?.naturalWidth > 0")  # the last answer is kept


def test_a_card_that_no_engine_uses_is_told_with_its_remedy(
    chromium: Browser, tmp_path: Path, gguf_files: GgufFiles
) -> None:
    """The same words and the same command as `watchbill status` has."""
    source = gguf_files.chat("3MB")
    place = Place(tmp_path, f'[models.small]\nengine = "llamacpp"\nsource = "{source}"\n')
    cards = {"cards": [{"name": "gpu:0", "title": "NVIDIA <b>Lamp</b>", "capacity": "24GB"}]}
    (tmp_path / "cards.json").write_text(json.dumps(cards))
    place.environment["WATCHBILL_FAKE_GPUS"] = str(tmp_path / "cards.json")
    try:
        daemon = place.up()
        told = daemon.status()["unused_cards"]
        page = chromium.open(f"{daemon.url}/")
        live(page)
        page.until_text(told["mend"], ".unused code")
        assert "NVIDIA <b>Lamp</b>" in page.text(".unused") and told["why"] in page.text(".unused")
        judge(page, daemon)
        page.close()
    finally:
        place.close()


def test_a_plan_is_drawn_with_its_progress(page: Page, place: Place) -> None:
    said = place.run("plan", "submit", "words", "--root", "fleet")
    assert said.returncode == 0, said.stderr
    view(page, "plans")
    page.until_text("words", "#plans")
    page.until("document.querySelectorAll('.node').length === 3")
    page.until("document.querySelector('.batch')?.dataset.state === 'complete'")
    assert page.value("document.querySelectorAll('.edge').length") == 2


def test_the_journal_is_searched(page: Page) -> None:
    view(page, "journal")
    page.until("document.querySelectorAll('.journal li').length > 5")
    page.press("/")
    page.until("document.activeElement.id === 'journal-search'")
    page.write("ONERROR")
    page.until("[...document.querySelectorAll('.journal li')].every((e) => e.innerText.includes('onerror'))")
    page.until_text("lines", "#journal .why")
    assert page.value("document.querySelectorAll('.journal img, .journal script, .journal svg').length") == 0


def test_alerts_are_dismissed_and_the_theme_changes(page: Page, daemon: Daemon) -> None:
    daemon.ask("/wb/v1/models/broken/load", {})
    page.until_text("quarantine", "#alerts")
    page.click(labelled("Dismiss these alerts"))
    page.until("document.querySelector('#alerts').hidden")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.value(ground)
    page.click("#theme")
    assert page.value("document.documentElement.dataset.theme") == "dark" and page.value(ground) == dark
    page.click("#theme")
    assert page.value(ground) != dark
    for choice in range(1, 5):
        page.click(f"#timeline .switch button:nth-child({choice})")
        assert (
            page.value(f"document.querySelector('#timeline .switch button:nth-child({choice})').ariaPressed")
            == "true"
        )


# ------------------------------------------------------------------ the keyboard, small screens, everybody


def test_everything_can_be_done_with_the_keyboard(page: Page, daemon: Daemon) -> None:
    page.press("Tab")
    assert page.value("document.activeElement.className") == "skip"
    page.until(f"!!{row('quick')}")
    shown = "document.querySelector('[aria-label=\"Load quick\"]:not([hidden])')"
    label = "Load quick" if page.value(f"!!{shown}") else "Unload quick"
    for _ in range(120):
        page.press("Tab")
        if page.value("document.activeElement.ariaLabel") == label:
            break
    assert page.value("document.activeElement.ariaLabel") == label
    assert page.value("getComputedStyle(document.activeElement).outlineStyle") == "solid", (
        "the focus can be seen"
    )
    page.press("Enter")
    until_state(page, "quick", "ready" if label.startswith("Load") else "absent")
    page.value("document.querySelector('.stay[tabindex=\"0\"]').focus()")
    page.until("!document.querySelector('.tip').hidden")
    first = page.text(".tip")
    page.press("ArrowDown")
    page.until(f"document.querySelector('.tip').innerText !== {json.dumps(first)}")
    page.press("2")
    page.until("!document.querySelector('.view-chat').hidden")
    page.press("?")
    page.until_text("Search the journal", "dialog")
    page.press("Escape")
    page.until("!document.querySelector('dialog')")


@pytest.mark.parametrize("width", [320, 390, 820, 2560])
def test_no_screen_is_too_narrow_or_too_wide(chromium: Browser, daemon: Daemon, width: int) -> None:
    page = chromium.open(f"{daemon.url}/", width=width, height=900)
    live(page)
    for name in VIEWS:
        view(page, name)
        wide = page.value("document.documentElement.scrollWidth")
        assert wide <= width, (name, wide)
    judge(page, daemon)
    page.close()


def test_on_a_narrow_screen_requests_are_above_the_list_of_models(chromium: Browser, daemon: Daemon) -> None:
    """Issue 19: with 100 models on a phone, the requests were ten screens down."""
    page = chromium.open(daemon.url + "/#now", width=390, height=844)
    page.until_text("live", "#pulse")
    top = "document.querySelector('#%s').getBoundingClientRect().top"
    assert page.value(f"{top % 'requests'} < {top % 'models'} && {top % 'lanes'} < {top % 'models'}")
    page.close()


@pytest.mark.parametrize("dark", [True, False])
def test_axe_finds_nothing_serious(chromium: Browser, daemon: Daemon, dark: bool) -> None:
    """Every view, by the rules of axe-core: names, roles, contrast, order."""
    axe = Path(pytest.importorskip("axe_core_python").__file__).with_name("axe.min.js").read_text()
    page = chromium.open(f"{daemon.url}/", dark=dark)
    live(page)
    page.value(f"{axe}; true")
    for name in VIEWS:
        view(page, name)
        found = page.value(
            "axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations"
            ".filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => [v.id, v.nodes[0].html]))"
        )
        assert not found, (name, found)
    page.close()


def test_without_an_admin_key_the_page_only_shows(chromium: Browser, tmp_path: Path) -> None:
    """Where keys are set: nothing without one, nothing to press with an ordinary one, everything with an admin key."""
    keys = '[server.keys.user]\nkey = "user-key-0123456789"\n'
    keys += '[server.keys.chief]\nkey = "chief-key-0123456789"\nadmin = true\n'
    place = Place(tmp_path, f"{scripted('quick')}\n{keys}")
    try:
        daemon = place.up()
        page = chromium.open(f"{daemon.url}/")
        page.until("!!document.querySelector('dialog input[type=password]')")
        for key, admin in (("user-key-0123456789", False), ("chief-key-0123456789", True)):
            page.value(
                "document.querySelector('dialog input').value = ''; document.querySelector('dialog input').focus()"
            )
            page.write(key)
            page.press("Enter")
            live(page)
            page.until("!!document.querySelector('.model')")
            page.until(
                f"document.querySelector('[aria-label=\"Load quick\"]').disabled === {json.dumps(not admin)}"
            )
            assert ("read-only" in page.text("#pulse")) is not admin
            if not admin:
                page.click("#key")
        page.click(labelled("Load quick"))
        until_state(page, "quick", "ready")
        assert page.value("JSON.stringify(localStorage)").count("key-") == 0
        assert not [url for url in page.requests if "key-" in url]
        page.close()
    finally:
        place.close()


@contextmanager
def site(pages: dict[str, str]) -> Iterator[int]:
    """A web server of somebody else, on every address of this machine that browsers take for another site."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path, "").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_foreign_pages_load_nothing_and_an_engines_page_runs_nothing(
    chromium: Browser, tmp_path: Path
) -> None:
    """R46: images and links need no leave of ours, and an engine's page is on our own address."""
    pages = {"/": "", "/engine": "<title>engine</title><body><script>document.title = 'owned'</script>"}
    with site(pages) as port:
        engine = f'[engines.theirs]\ndriver = "remote"\nurl = "http://127.0.0.1:{port}"\n'
        place = Place(tmp_path, f'{scripted("quick")}\n{engine}[models.theirs]\nengine = "theirs"\n')
        try:
            daemon = place.up()
            asked = [f"{daemon.url}/{path}" for path in ("props?model=quick", "upstream/quick/health")]
            images = "".join(f"<img src={url} onerror=document.title+='x'>" for url in asked)
            pages["/"] = f"<title>-</title>{images}<a href={daemon.url}/upstream/theirs/engine>engine</a>"
            page = chromium.open(f"http://localhost:{port}/")
            page.until("document.title === '-xx'")
            assert daemon.status()["models"]["quick"]["loads"] == 0
            page.value("document.querySelector('a').click()")
            page.until_text("forbidden")
            page.go(f"{daemon.url}/upstream/theirs/engine")
            page.until("document.title === 'engine'")
            page.close()
        finally:
            place.close()


TAKE = "import('/page/live.js').then(({live}) => { live.take({now: live.now(), set: {}, %s}) })"


def test_a_line_of_the_journal_is_shown_though_nothing_else_changed(page: Page) -> None:
    """Issue 19: a refusal changes no table; its line waited for something else to happen."""
    view(page, "journal")
    page.until("document.querySelectorAll('.journal li').length > 1")
    line = {
        "t": "2026-01-02T03:04:05.678Z",
        "event": "refuse",
        "model": None,
        "device": None,
        "reason": "alone",
    }
    lines = json.dumps([line | {"ms": None, "bytes": None, "request": None}])
    page.value(TAKE % f"journal: {lines}, missed: 0")
    page.until("document.querySelector('.journal li .said').textContent === 'alone'", 1)
    many = json.dumps([{**json.loads(lines)[0], "reason": f"line {number}"} for number in range(100)])
    for _ in range(3):
        page.value(TAKE % f"journal: {many}, missed: 400")
    page.until_text("480 lines came too fast to be shown", "#journal")
    said = "[...document.querySelectorAll('.journal li .said')]"
    page.until(f"{said}.some((each) => each.textContent === 'line 99')")
    assert page.value(f"{said}.length") <= 50


def test_rows_that_cannot_be_seen_are_left_alone_until_they_can(chromium: Browser, tmp_path: Path) -> None:
    """Issue 19: with 100 models only those on the screen change at once; one that is scrolled shows the rest."""
    place = Place(tmp_path, "\n".join(scripted(f"m{number:02d}") for number in range(60)))
    try:
        page = chromium.open(f"{place.up().url}/", height=700)
        live(page)
        page.until("document.querySelectorAll('.model').length === 60")
        changed = (
            "import('/page/live.js').then(({live}) => { const models = {};"
            " for (const [name, row] of live.table('models')) models[name] = {...row, queued: %d};"
            " live.take({now: live.now(), set: {models}}) })"
        )
        load = "[...document.querySelectorAll('.model .load')].at(%d).textContent"
        deadline = 20
        while True:  # now and then all rows are changed: not in the moment that is looked at
            page.value(changed % deadline)
            page.until(f"{load % 0} === '{deadline} waiting'")
            if page.value(load % -1) != f"{deadline} waiting":
                break
            deadline -= 1
            assert deadline, "every row is changed each time"
        page.value("document.querySelector('.model:last-child').scrollIntoView({behavior: 'instant'})")
        page.until(f"{load % -1} === '{deadline} waiting'", 1)
        page.value("scrollTo({top: 0, behavior: 'instant'})")
        page.value(changed % 99)
        page.until(f"{load % -1} === '99 waiting'")  # a search in the page and a screen reader find it, too
        page.close()
    finally:
        place.close()


def test_a_row_of_the_line_that_somebody_uses_stays_with_its_request(page: Page) -> None:
    """Places of the line are written anew as it moves on, unless the mouse or the keyboard is in it: a click that
    begins on one request must not end on another."""
    seen = page.value(
        "(async () => { const { QueueRows, el } = await import('/page/dom.js');"
        " const list = el('ul'); document.body.append(list);"
        " const row = () => { const b = el('button'), element = el('li', {}, b);"
        "   return { element, update(value, key) { b.textContent = key; }, tick() {} } };"
        " const rows = new QueueRows(list, row);"
        " const text = () => [...list.children].map((each) => each.innerText).join('');"
        " const show = (keys) => { rows.show([...keys].map((k) => [k, { k }])); return text() };"
        " const told = []; show('abcd'); const first = list.firstElementChild;"
        " told.push(show('bcde'), String(first === list.firstElementChild), text());"
        " const held = list.children[2].firstElementChild; held.focus();"
        " told.push(show('cdef'), held.innerText, String(document.activeElement === held));"
        " show('def'); told.push(held.innerText, document.activeElement.innerText);"
        " document.activeElement.blur(); told.push(show('fx'), show('')); list.remove(); return told })()"
    )
    assert seen == ["bcde", "true", "bcde", "cdef", "d", "true", "d", "d", "fx", ""]


def test_a_page_that_knows_nothing_claims_nothing(chromium: Browser, daemon: Daemon) -> None:
    """Issue 19: before the first picture it does not say that there are no models and that nobody waits."""
    page = chromium.open("about:blank#")
    page.ask("Network.setBlockedURLs", urls=["*/wb/v1/live"])
    page.go(daemon.url)
    page.until_text("the daemon is away")
    said = page.text()
    assert "the page waits for the daemon" in said
    assert not any(claim in said for claim in ("No request waits", "No model", "of 0 models")), said
    page.ask("Network.setBlockedURLs", urls=[])
    page.until_text("live", "#pulse")
    assert "In memory" in page.text() and "the page waits for the daemon" not in page.text()
    page.close()


def test_a_page_comes_back_when_the_daemon_does(chromium: Browser, place: Place, daemon: Daemon) -> None:
    """The last test of this daemon: it goes, the page says so, and shows the next one without a hand."""
    page = chromium.open(f"{daemon.url}/")
    live(page)
    daemon.stop()
    page.until("document.querySelector('#pulse').dataset.state === 'lost'")
    again = place.begin("--port", str(daemon.port), command=(sys.executable, "-m", "watchbill", "up"))
    again.wait_ready()
    live(page)
    page.until(f"{row('quick')}?.dataset.state === 'absent'")
    assert again.url == daemon.url
    page.close()
