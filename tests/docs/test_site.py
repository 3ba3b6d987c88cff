"""The site: each page is found, quoted messages and figures are real, and the search finds its words."""

from __future__ import annotations

import functools
import http.server
import json
import queue
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import aiolocks
from aiolocks.transport import faults
from aiolocks.transport.steps.family import kinds
from benchmarks import docs
from benchmarks.model import Report
from tests.docs import diagrams, llms, matrix, messages, moved, peers, queues
from tests.docs.markdown import read
from tests.simulation.world import table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_diagrams_are_as_their_texts_are_and_each_is_on_a_page() -> None:
    pages = "".join(path.read_text("utf-8") for path in DOCS.rglob("*.md"))
    sources = {path.stem: path for path in diagrams.FOLDER.glob("*.txt")}
    assert {path.stem for path in diagrams.FOLDER.glob("*.svg")} == sources.keys()
    for name, path in sources.items():
        drawn = path.with_suffix(".svg").read_text("utf-8")
        assert drawn == diagrams.drawing(path.read_text("utf-8")), "draw them: python -m tests.docs.diagrams"
        assert f"assets/diagrams/{name}.svg)" in pages, name


def test_each_page_is_in_the_sidebar() -> None:
    named = [path for _, path in llms.pages(llms.navigation())]
    assert sorted(named) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_the_matrix_of_kinds_is_as_the_code_is_and_has_each_kind() -> None:
    assert matrix.PAGE.read_text("utf-8") == matrix.text(), "write it again: python -m tests.docs.matrix"
    made = {kind.title for kind in kinds().values() if not kind.made_by}
    assert {row.name for row in matrix.ROWS} == made


def test_what_has_moved_leads_to_a_page_and_its_anchor() -> None:
    for old, new in moved.MOVED.items():
        page, _, anchor = new.partition("#")
        assert not (DOCS / f"{old}.md").exists(), old
        assert not anchor or anchor in read(DOCS / f"{page}.md").anchors, new
        assert (DOCS / f"{page}.md").exists(), new


def test_the_site_names_the_version() -> None:
    assert f"\ncopyright: aiolocks {aiolocks.__version__}\n" in (ROOT / "mkdocs.yml").read_text("utf-8")


def test_the_list_for_programs_is_as_the_pages_are() -> None:
    assert llms.LIST.read_text("utf-8") == llms.text(), "write it again: python -m tests.docs.llms"


TROUBLE = (DOCS / "how-to/troubleshooting.md").read_text("utf-8")


def shown(section: str) -> tuple[list[str], list[str]]:
    """The messages in a section of the page, and those in the first cells of its tables."""
    text = TROUBLE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    tables = text.partition("| the server says |")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", tables, re.MULTILINE)
    rows = [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
    frames = re.findall(r"^`([^`]+…)`", text, re.MULTILINE)  # a line that begins with a message
    return frames + rows, rows


@pytest.mark.parametrize("section", messages.SECTIONS)
def test_each_message_has_its_trouble_and_each_trouble_is_a_message(section: str) -> None:
    codes, rows = shown(section)
    for template in messages.templates()[section]:
        said = template.replace("`", "").replace("|", "\\|")
        assert any(messages.alike(code, said) for code in codes), f"{section} has no row for {template!r}"
    for row in rows:
        assert any(
            messages.alike(row, template.replace("`", "")) for template in messages.templates()[section]
        ), row


def test_each_error_of_the_server_has_its_trouble() -> None:
    rows = TROUBLE.partition("\n| the server says |")[2].partition("\n\n")[0]
    assert faults._KNOWN.keys() == {*re.findall(r"`([A-Z]+)`", rows)}


def test_figures_are_those_that_the_benchmarks_measured() -> None:
    for page, text in docs.texts(Report.load(docs.results(DOCS)), DOCS).items():
        again = "python -m benchmarks --from docs/assets/benchmarks/results.json --docs docs"
        assert page.read_text("utf-8") == text, f"write it again: {again}"


def test_the_page_of_test_results_is_as_their_data_are() -> None:
    again = "write it again: python -m tests.simulation.world.table"
    assert table.PAGE.read_text("utf-8") == table.text(), again


def test_the_comparison_has_a_cell_of_each_peer_for_each_fault() -> None:
    table = peers.PAGE.read_text("utf-8").partition(peers.BEGIN)[2].partition(peers.END)[0]
    headings, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line]
    assert [row[0].strip("*") for row in rows] == list(peers.FAULTS), "run python -m tests.docs.peers"
    assert [len(row) for row in rows] == [len(peers.PEERS) + 1] * len(rows)
    assert all(re.search(r" \d", heading) for heading in headings[1:])


def test_the_page_on_workers_has_a_row_of_each_queue_and_way() -> None:
    table = queues.PAGE.read_text("utf-8").partition(queues.BEGIN)[2].partition(queues.END)[0]
    _, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert [row[1] for row in rows] == [row.own for row in queues.ROWS], "run python -m tests.docs.queues"
    assert {len(row) for row in rows} == {4}


WORDS = {
    "barrier": ("how-to/turnstile/", "how-to/which-one/"),
    "bulkhead": ("how-to/semaphore/",),
    "cache": ("how-to/singleflight/",),
    "celery": ("how-to/workers/",),
    "circuit breaker": ("how-to/use-in-production/",),
    "cron": ("how-to/schedule/", "how-to/once-per-cluster/"),
    "debounce": ("how-to/uniquejob/", "how-to/combiner/"),
    "distributed lock": ("reference/lock/", "how-to/which-one/"),
    "django": ("how-to/workers/", "how-to/fence-sql/"),
    "expire": ("reference/lock/", "how-to/use-in-production/"),
    "fencing": ("how-to/fencing/",),
    "flask": ("how-to/workers/",),
    "kubernetes": ("how-to/use-in-production/",),
    "known limits": ("explanation/known-limits/",),
    "leader election": ("how-to/leadership/", "reference/leadership/"),
    "lease": ("reference/lock/", "explanation/how-a-lock-is-kept/"),
    "mutex": ("reference/lock/", "how-to/which-one/"),
    "once": ("how-to/once-per-cluster/", "how-to/uniquejob/"),
    "rate limit": ("how-to/ratelimit/",),
    "retry": ("how-to/accept-a-payment-once/", "how-to/workers/"),
    "singleton": ("how-to/leadership/", "how-to/which-one/"),
    "throttle": ("how-to/ratelimit/",),
    "timeout": ("reference/lock/", "how-to/use-in-production/"),
    "troubleshooting": ("how-to/troubleshooting/",),
    "ttl": ("reference/lock/", "how-to/use-in-production/"),
}
"""Words of a search, and the pages of which all are its first or its second result."""


class Search:
    """The search of the site: lunr, made and asked as the worker of mkdocs-material does.

    Args:
        index: That which mkdocs has built.
    """

    def __init__(self, index: dict[str, Any]) -> None:
        lunr = pytest.importorskip("lunr", reason="lunr is in the dependency group docs")
        builder = lunr.builder.Builder()
        builder.b(0)
        assert index["config"]["pipeline"] == ["stopWordFilter"], "as this does: no stems"
        builder.pipeline.add(lunr.stop_word_filter.stop_word_filter)
        builder.ref("location")
        for field, options in index["config"]["fields"].items():
            builder.field(field, boost=options["boost"])
        self.separator = re.compile(index["config"]["separator"])
        for entry in index["docs"]:
            said = {field: self.words(entry.get(field)) for field in index["config"]["fields"]}
            builder.add({"location": entry["location"], **said}, {"boost": entry.get("boost", 1)})
        self._index = builder.build()

    def words(self, text: str | list[str] | None) -> list[str]:
        """The words of a text with the marks of HTML, or of several texts."""
        plain = re.sub("<[^>]*>", " ", " ".join(text) if isinstance(text, list) else text or "")
        return [word for word in self.separator.split(plain) if word]

    def pages(self, asked: str) -> list[str]:
        """The pages that are found, the best one first."""
        words = self.words(asked)
        scores: dict[str, float] = {}
        for found in self._index.search(" ".join(f"{word}*" for word in words)):
            terms = found["match_data"].metadata
            share = sum(any(term.startswith(word) for term in terms) for word in words) / len(words)
            page, _, section = found["ref"].partition("#")
            score = found["score"] * (1 + ((not section) + share) ** 2)
            scores[page] = max(scores.get(page, 0.0), score)
        return sorted(scores, key=lambda page: -scores[page])


BUILD = ("mkdocs", "build", "--strict", "--quiet", "--site-dir")
"""As the workflow `docs` does."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} is in the dependency group docs")
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", *BUILD, str(directory)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return directory


@pytest.mark.long
def test_site_builds_search_finds_and_signatures_are_those_of_users(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text("utf-8"))
    search = Search(index)
    assert "timeout" in search.words("(blocking_timeout=5)"), "names are split at `_`"
    first = {asked: search.pages(asked)[:2] for asked in WORDS}
    assert {asked: found for asked, found in first.items() if not {*WORDS[asked]} <= {*found}} == {}
    for target in re.findall(r"^- \[.+?\]\((.+?)\)", (site / "llms.txt").read_text("utf-8"), re.MULTILINE):
        assert (site / target / "index.html").exists(), target
    for old in moved.MOVED:
        (to,) = re.findall('href="([^"#]+)', (site / old / "index.html").read_text("utf-8"))[:1]
        assert (site / old / to / "index.html").exists(), old
    for page in (site / "reference").rglob("*.html"):
        text = page.read_text("utf-8")
        assert ">Never<" not in text, page  # a parameter that is no part of a call
        assert "AS_CONFIGURED" not in text, page  # a default that has no meaning for users
        for signature in re.findall(r'<div class="[^"]*doc-signature.*?</div>', text, re.DOTALL):
            plain = re.sub("<[^>]+>", "", signature)
            assert not re.search(r"=\s*\.\.\.", plain), f"{page} has a default that is not told: {plain}"
    for kind in ("limits", "rwlock"):
        assert "lock/#common-options" in (site / f"reference/{kind}/index.html").read_text("utf-8"), kind
    assert (site / "reference/lock/index.html").read_text("utf-8").count(">common options</a>") == 4
    errors = (site / "reference/errors/index.html").read_text("utf-8")
    trouble = (site / "how-to/troubleshooting/index.html").read_text("utf-8")
    for name in messages.ERRORS:
        assert f"troubleshooting/#{name.lower()}" in errors, name
        assert f'id="{name.lower()}"' in trouble, name


# -- in a browser

MEASURE = """<!doctype html><script>
const pages = %s, width = %d, found = [];
async function look() {
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-same-origin";  // without scripts
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  document.body.append(frame);
  for (let page; page = pages.pop(); ) {
    const loaded = new Promise(done => { frame.onload = done; });
    frame.src = page;
    await loaded;
    const inside = frame.contentDocument;
    if (inside.documentElement.scrollWidth > width) found.push(`${page}: the page itself`);
    if (width > 1000)
      for (const one of inside.querySelectorAll("pre > code, .md-typeset table:not([class])"))
        if (one.scrollWidth > one.clientWidth) found.push(`${page}: ${one.textContent.slice(0, 60)}`);
  }
}
window.onload = async () => {
  await Promise.all([look(), look(), look(), look()]);
  await fetch("/found", {method: "POST", body: JSON.stringify(found.sort())});
};
</script><body></body>"""


class Site(http.server.SimpleHTTPRequestHandler):
    """Serves files, and takes what the browser has found."""

    found: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()


@pytest.mark.soak
@pytest.mark.timeout(150)
@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_is_cut_off(site: Path, width: int, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no browser")
    names = [path.relative_to(site).as_posix() for path in sorted(site.rglob("index.html"))]
    (site / "measure.html").write_text(MEASURE % (json.dumps(names), width), encoding="utf-8")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Site, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
        url = f"http://127.0.0.1:{server.server_port}/measure.html"
        with subprocess.Popen(
            [browser, *options, f"--user-data-dir={tmp_path}", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as running:
            try:
                assert Site.found.get(timeout=120) == []
            finally:
                running.terminate()
                server.shutdown()
