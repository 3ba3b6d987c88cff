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

import pytest

import aiolocks
from aiolocks.transport import faults
from aiolocks.transport.commands.family import kinds
from benchmarks import docs
from benchmarks.model import Report
from tests.docs import diagrams, llms, matrix, messages

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
    made = {kind.title for kind in kinds().values()} - {"Turn"}  # which `SingleFlight.turn` gives
    assert {row.name for row in matrix.ROWS} == made


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


WORDS = {
    "leader election": ("how-to/leadership/", "reference/leadership/"),
    "mutex": ("reference/lock/",),
    "kubernetes": ("how-to/deploy/",),
    "celery": ("how-to/schedule/", "how-to/threads/"),
    "django": ("how-to/fence-sql/", "how-to/threads/"),
    "troubleshooting": ("how-to/troubleshooting/",),
    "known limits": ("explanation/known-limits/",),
    "timeout": ("reference/lock/", "how-to/use-in-production/"),
    "cron": ("reference/schedule/", "how-to/schedule/"),
    "singleton": ("how-to/which-one/",),
    "barrier": ("how-to/which-one/",),
    "rate limit": ("how-to/which-one/",),
}
"""Words of a search, and pages that it must find."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} is in the dependency group docs")
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return directory


def test_site_builds_search_finds_and_signatures_are_those_of_users(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text("utf-8"))
    separator = re.compile(index["config"]["separator"])
    assert "timeout" in separator.split("(blocking_timeout=5)"), "names are split at `_`"
    sections = [
        (
            entry["location"].partition("#")[0],
            set(separator.split(f"{entry['title']} {entry['text']}".lower())),
        )
        for entry in index["docs"]
    ]
    for words, pages in WORDS.items():
        found = {page for page, said in sections if said.issuperset(words.split())}
        assert found.issuperset(pages), words
    for target in re.findall(r"^- \[.+?\]\((.+?)\)", (site / "llms.txt").read_text("utf-8"), re.MULTILINE):
        assert (site / target / "index.html").exists(), target
    for page in (site / "reference").rglob("*.html"):
        text = page.read_text("utf-8")
        assert ">Never<" not in text, page  # a parameter that is no part of a call
        assert "AS_CONFIGURED" not in text, page  # a default that has no meaning for users
        for signature in re.findall(r'<div class="[^"]*doc-signature.*?</div>', text, re.DOTALL):
            plain = re.sub("<[^>]+>", "", signature)
            assert not re.search(r"=\s*\.\.\.", plain), f"{page} has a default that is not told: {plain}"
    for kind in ("semaphore", "limits", "rwlock", "rangelock", "redlock"):
        assert "lock/#common-options" in (site / f"reference/{kind}/index.html").read_text("utf-8"), kind
    assert (site / "reference/lock/index.html").read_text("utf-8").count(">common options</a>") == 3
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
