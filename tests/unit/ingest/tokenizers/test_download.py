"""Vocabularies by name: fetched once from a real server into PaddleNLP's cache, whole or not at all."""

from __future__ import annotations

import http.server
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.ingest import tokenizers
from headrace.ingest.tokenizers import download, layout
from headrace.ingest.tokenizers.base import Options
from headrace.schemas.errors import StoreAway, UsageError
from tests.unit.ingest.tools import VOCABULARY

CONTENT = "".join(f"{token}\n" for token in dict.fromkeys(VOCABULARY)).encode()
PATH = "paddlenlp/models/transformers/ernie_3.0/ernie_3.0_nano_zh_vocab.txt"
NAME = "ernie-3.0-nano-zh"

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def whole(request: http.server.BaseHTTPRequestHandler) -> None:
    _send(request, 200, CONTENT, len(CONTENT))


def short(request: http.server.BaseHTTPRequestHandler) -> None:
    _send(request, 200, CONTENT[:50], len(CONTENT))


def login_page(request: http.server.BaseHTTPRequestHandler) -> None:
    page = b"<html>please log in</html>"
    _send(request, 200, page, len(page))


def silent(request: http.server.BaseHTTPRequestHandler) -> None:
    """Closes the connection without a word."""


def status(code: int) -> Answer:
    return lambda request: _send(request, code, b"", 0)


def _send(request: http.server.BaseHTTPRequestHandler, code: int, content: bytes, announced: int) -> None:
    request.send_response(code)
    request.send_header("Content-Length", str(announced))
    request.end_headers()
    request.wfile.write(content)


@contextmanager
def serving(*answers: Answer) -> Iterator[tuple[str, list[str]]]:
    """Address of a server that gives these answers in turn, the last one for ever; and the paths it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answers[min(len(asked), len(answers)) - 1](self)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mirror", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PPNLP_HOME", str(tmp_path / "paddlenlp"))
    return tmp_path / "paddlenlp" / "models"


def fetch(monkeypatch: pytest.MonkeyPatch, address: str) -> Path:
    monkeypatch.setenv("HEADRACE_VOCABULARIES", address)
    return download.fetched(NAME, PATH, lambda content: layout.check_builtin(content, PATH), waits_s=(0, 0))


def files(cache: Path) -> list[str]:
    return [
        str(file.relative_to(cache))
        for file in sorted(cache.rglob("*"))
        if file.is_file() and ".locks" not in file.parts
    ]


@pytest.mark.parametrize(
    "answers",
    [(whole,), (status(503), whole), (short, whole), (silent, status(500), whole)],
    ids=["ok", "503", "short", "both"],
)
def test_the_file_is_fetched_where_paddlenlp_looks_for_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, answers: tuple[Answer, ...]
) -> None:
    with serving(*answers) as (address, asked):
        file = fetch(monkeypatch, address)
        assert fetch(monkeypatch, address) == file
    assert asked == [f"/mirror/{PATH}"] * len(answers)
    assert file.read_bytes() == CONTENT
    assert files(cache) == [f"{NAME}/ernie_3.0_nano_zh_vocab.txt"]


@pytest.mark.parametrize(
    ("answer", "error", "reason", "times"),
    [
        (status(404), UsageError, "404", 1),
        (status(503), StoreAway, "503", 3),
        (short, StoreAway, f"50 of {len(CONTENT)} bytes", 3),
        (login_page, UsageError, r"lacks \[CLS\]", 1),
    ],
    ids=["404", "503", "short", "login page"],
)
def test_what_is_no_whole_vocabulary_is_not_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, error: type[Exception], reason: str, times: int
) -> None:
    with serving(answer) as (address, asked), pytest.raises(error, match=rf"tokenizer\.path.*{reason}"):
        fetch(monkeypatch, address)
    assert len(asked) == times
    assert files(cache) == []


def test_offline_names_the_address_and_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(whole) as (address, _):
        pass
    with pytest.raises(StoreAway, match=rf"{address}/{PATH}.*named vocab\.txt.*tokenizer\.path.*HEADRACE_VOCABULARIES"):
        fetch(monkeypatch, address)


def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="HEADRACE_VOCABULARIES"):
        fetch(monkeypatch, "mirror")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PPNLP_HOME", str(tmp_path / "file"))
    with serving(whole) as (address, _), pytest.raises(UsageError, match="set PPNLP_HOME"):
        fetch(monkeypatch, address)


def _fetch_in_child(address: str, home: str, barrier: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PPNLP_HOME", home)
        barrier.wait()
        fetch(patch, address)


def test_two_processes_at_once_fetch_it_once(cache: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(2)
    with serving(whole) as (address, asked):
        children = [spawn.Process(target=_fetch_in_child, args=(address, str(cache.parent), barrier)) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert len(asked) == 1
    assert files(cache) == [f"{NAME}/ernie_3.0_nano_zh_vocab.txt"]


def test_paddlenlp_looks_for_it_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own downloader finds the file and does not ask."""
    from paddlenlp.utils.download.bos_download import bos_download

    with serving(whole) as (address, asked):
        file = fetch(monkeypatch, address)
        found = bos_download(repo_id=NAME, filename=None, url=f"{address}/{PATH}", cache_dir=str(cache))
        assert len(asked) == 1
    assert Path(found) == file
    from paddlenlp.utils.env import _get_ppnlp_home

    assert download.cache_folder() == Path(_get_ppnlp_home()) / "models"


class TestByName:
    """`find` of a name, from the cache that is there: nothing is asked for."""

    OPTIONS = Options(max_tokens=16)

    def put(self, cache: Path, name: str, file: str) -> Path:
        (cache / name).mkdir(parents=True)
        (cache / name / file).write_bytes(CONTENT)
        return cache / name / file

    def test_class_and_case_are_those_of_the_name(self, cache: Path) -> None:
        file = self.put(cache, "bert-base-chinese", "bert-base-chinese-vocab.txt")
        (file.parent / "tokenizer_config.json").write_text('{"do_lower_case": true}')  # PaddleNLP does not read it
        found = tokenizers.find("bert-base-chinese", self.OPTIONS)
        assert (found.kind, found.file, found.case) == ("compiled WordPiece", file, "cased")
        assert "PaddleNLP's BertTokenizer" in found.why

    def test_other_names_are_folders_of_the_cache(self, cache: Path) -> None:
        file = self.put(cache, "me/mine", "vocab.txt")
        assert tokenizers.find("me/mine", self.OPTIONS).file == file

    def test_a_folder_of_that_name_comes_first(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.put(cache, NAME, "ernie_3.0_nano_zh_vocab.txt")
        mine = self.put(tmp_path, NAME, "vocab.txt")
        monkeypatch.chdir(tmp_path)
        assert tokenizers.find(NAME, self.OPTIONS).file.resolve() == mine
