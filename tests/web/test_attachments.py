"""Files that go with a message on the page, in a real browser; a program in the test's place answers."""

import base64
import io
import json
import struct
import subprocess
import wave
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route

from tests.running_server import RunningServer, wait_until
from tests.web.browser import agree, answer, answered, ask, expect, opened, picture, violations

PARIS = "The capital of France is Paris."
_CHUNK = {"choices": [{"index": 0, "delta": {"content": PARIS}, "finish_reason": "stop"}]}
ANSWER = f"data: {json.dumps(_CHUNK)}\n\ndata: [DONE]\n\n"
HEARS = {"id": "hears", "capabilities": ["completion", "audio"]}
WRITES = {"id": "writes", "capabilities": ["transcription"], "chat": False}
SEES, READS = {"id": "sees", "capabilities": ["completion", "vision"]}, {"id": "reads", "capabilities": ["completion"]}
# Files of one pixel, as their programs write them.
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwgJC4nICIsIxwcKDcpLDAxNDQ0Hyc5PTgy"
    "PC4zNDL/wAALCAABAAEBAREA/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEG"
    "E1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJ"
    "ipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/9oACAEBAAA/APn+v//Z"
)
GIF = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
WEBP = base64.b64decode("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")
BMP = struct.pack("<2sIHHIIiiHHIIiiII4x", b"BM", 58, 0, 0, 54, 40, 1, 1, 1, 24, 0, 4, 0, 0, 0, 0)


def png(red: int) -> bytes:
    """A PNG of 8 by 8 pixels in one colour."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = (b"\0" + bytes((red, 0, 0)) * 8) * 8
    head = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def url_of(data: bytes, type: str = "image/png") -> str:
    return f"data:{type};base64,{base64.b64encode(data).decode()}"


def file(name: str, content: bytes, type: str = "") -> Any:
    return {"name": name, "mimeType": type, "buffer": content}


HELVETICA = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def cjk_font(ordering: str, cmap: str) -> str:
    """A font of a PDF that is not embedded: a character collection of Adobe with a predefined CMap for its codes."""
    descriptor = "/FontName /Any /Flags 6 /FontBBox [0 0 1000 1000] /ItalicAngle 0 /Ascent 700 /Descent -200 /StemV 69"
    return (
        f"<< /Type /Font /Subtype /Type0 /BaseFont /Any /Encoding /{cmap} /DescendantFonts [<< /Type /Font "
        f"/Subtype /CIDFontType0 /BaseFont /Any /CIDSystemInfo << /Registry (Adobe) /Ordering ({ordering}) "
        f"/Supplement 0 >> /FontDescriptor << /Type /FontDescriptor {descriptor} >> >>] >>"
    )


def pdf(*pages: str, font: str = HELVETICA, encoding: str = "ascii") -> bytes:
    """A PDF whose pages have these texts, in a font whose codes of characters are those of Python's `encoding`."""
    numbers = [3 + 2 * place for place in range(len(pages))]
    kids = " ".join(f"{number} 0 R" for number in numbers)
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>"]
    for number, text in zip(numbers, pages, strict=True):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {number + 1} 0 R "
            f"/Resources << /Font << /F1 {font} >> >> >>"
        )
        content = f"BT /F1 1 Tf 50 700 Td <{text.encode(encoding).hex()}> Tj ET"
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    found, places = b"%PDF-1.7\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(found))
        found += f"{number} 0 obj\n{each}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    head = f"xref\n0 {size}\n0000000000 65535 f \n{table}"
    tail = f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{len(found)}\n%%EOF\n"
    return found + head.encode() + tail.encode()


def wave_file() -> bytes:
    """A tenth of a second of silence as a WAV file."""
    with io.BytesIO() as target:
        with wave.open(target, "wb") as sound:
            sound.setparams((1, 2, 16_000, 0, "NONE", ""))
            sound.writeframes(bytes(3200))
        return target.getvalue()


CAT = file("cat.png", png(200), "image/png")
CAT_PART = {"type": "image_url", "image_url": {"url": url_of(CAT["buffer"])}}


class Talk:
    """The page, and the bodies of the chats that it requested."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.bodies: list[dict[str, Any]] = []
        self.list(SEES)
        page.route("**/v1/chat/completions", self._answer)
        page.reload()

    def list(self, *models: dict[str, Any]) -> None:
        """Make the page list these models; it loads them again once the picker is used."""
        common = {"object": "model", "created": 1, "owned_by": "genai-server", "state": "ready", "chat": True}
        body = {"object": "list", "data": [{**common, "root": model["id"], **model} for model in models]}
        self.page.unroute("**/v1/models")
        self.page.route("**/v1/models", lambda route: route.fulfill(json=body))
        self.page.evaluate("import('./ui/models.js').then(({models}) => models.load())")

    def _answer(self, route: Route) -> None:
        self.bodies.append(json.loads(route.request.post_data or ""))
        route.fulfill(content_type="text/event-stream", body=ANSWER)

    def attach(self, *files: Any) -> None:
        self.page.get_by_label("Files", exact=True).set_input_files(list(files))

    def attached(self) -> Locator:
        """The attachments of the composer."""
        return self.page.locator(".composer .attachments > li")

    def asked(self) -> Any:
        """The content of the last question that was sent."""
        return self.bodies[-1]["messages"][-1]["content"]


@pytest.fixture
def talk(browser: Browser, own_scripted: RunningServer) -> Iterator[Talk]:
    with opened(browser, own_scripted) as page:
        yield Talk(page)


@pytest.mark.smoke
def test_an_image_is_sent_before_the_text_and_kept(talk: Talk, tmp_path: Path) -> None:
    talk.attach(CAT)
    expect(talk.attached()).to_have_count(1)
    picture(talk.page, "attached", tmp_path)
    ask(talk.page, "What is this?")
    assert talk.asked() == [CAT_PART, {"type": "text", "text": "What is this?"}]
    expect(talk.attached()).to_have_count(0)
    shown = talk.page.get_by_role("article", name="You").get_by_role("img", name="cat.png")
    assert shown.evaluate("image => image.naturalWidth") == 8
    talk.page.reload()
    expect(shown).to_be_visible()
    ask(talk.page, "And now?")
    assert [message["content"] for message in talk.bodies[-1]["messages"]] == [
        [CAT_PART, {"type": "text", "text": "What is this?"}],
        PARIS,
        "And now?",
    ]
    shown.click()
    expect(talk.page.get_by_role("dialog", name="cat.png").get_by_role("link", name="Save")).to_be_visible()
    picture(talk.page, "image-opened", tmp_path)


def test_attachments_are_accessible_and_fit_a_phone(talk: Talk, tmp_path: Path) -> None:
    talk.attach(CAT, file("notes.txt", b"words\n" * 50))
    expect(talk.attached()).to_have_count(2)
    ask(talk.page, "What?")
    talk.page.set_viewport_size({"width": 360, "height": 740})
    talk.attach(*(file(f"{number}.png", CAT["buffer"]) for number in range(6)), file("notes.txt", b"words"))
    expect(talk.attached()).to_have_count(7)
    picture(talk.page, "attachments-phone", tmp_path)
    assert talk.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert violations(talk.page) == []
    talk.page.get_by_role("article", name="You").get_by_role("img", name="cat.png").click()
    expect(talk.page.get_by_role("dialog", name="cat.png")).to_be_visible()
    assert violations(talk.page) == []


def test_an_image_alone_is_a_message_and_names_the_chat(talk: Talk) -> None:
    talk.attach(CAT)
    expect(talk.attached()).to_have_count(1)
    talk.page.get_by_role("button", name="Send", exact=True).click()
    expect(answer(talk.page)).to_contain_text(PARIS)
    assert talk.asked() == [CAT_PART]
    expect(talk.page.locator(".chat-list .open")).to_have_text("cat.png")


@pytest.mark.parametrize(
    ("content", "type"),
    [(JPEG, "image/jpeg"), (GIF, "image/gif"), (WEBP, "image/webp"), (BMP, "image/bmp")],
    ids=["jpeg", "gif", "webp", "bmp"],
)
def test_image_types_are_told_by_their_content(talk: Talk, content: bytes, type: str) -> None:
    talk.attach(file("picture.dat", content))
    expect(talk.attached()).to_have_count(1)
    ask(talk.page, "What?")
    assert talk.asked()[0]["image_url"]["url"] == url_of(content, type)


def test_a_removed_attachment_is_not_sent(talk: Talk) -> None:
    talk.attach(CAT, file("dog.png", png(90)))
    expect(talk.attached()).to_have_count(2)
    talk.page.get_by_role("button", name="Remove cat.png").click()
    expect(talk.attached()).to_have_count(1)
    ask(talk.page, "What?")
    assert [part.get("image_url", {}).get("url") for part in talk.asked()] == [url_of(png(90)), None]


# Gives an element an event of the clipboard or of a drag with this file.
HAND_OVER = """(element, [kind, name, content, texts]) => {
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], name, { type: "image/png" }));
    for (const [type, text] of Object.entries(texts)) data.setData(type, text);
    const event = kind === "paste" ? new ClipboardEvent(kind, { clipboardData: data, bubbles: true, cancelable: true })
        : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
    element.dispatchEvent(event);
    return event.defaultPrevented;
}"""


def test_images_are_pasted_and_dropped(talk: Talk) -> None:
    content = base64.b64encode(CAT["buffer"]).decode()
    area, turns = talk.page.get_by_label("Message", exact=True), talk.page.locator(".turns")
    assert area.evaluate(HAND_OVER, ["paste", "pasted.png", content, {}])
    expect(talk.attached()).to_have_count(1)
    assert turns.evaluate(HAND_OVER, ["dragover", "dropped.png", content, {}])
    expect(talk.page.locator(".composer-box.dropping")).to_have_count(1)
    assert turns.evaluate(HAND_OVER, ["drop", "dropped.png", content, {}])
    expect(talk.attached()).to_have_count(2)
    expect(talk.page.locator(".composer-box.dropping")).to_have_count(0)
    # A table of a spreadsheet is pasted as text, although a picture of it comes along.
    table = {"text/plain": "1\t2", "text/html": "<td>1<td>2"}
    assert not area.evaluate(HAND_OVER, ["paste", "table.png", content, table])
    # A file manager adds the name of a file that is copied.
    assert area.evaluate(HAND_OVER, ["paste", "copied.png", content, {"text/plain": "copied.png"}])
    expect(talk.attached()).to_have_count(3)


REFUSED = [
    ("movie.mp4", b"\0\0\0\x18ftypmp42", "is a recording, and no model of this server hears or transcribes."),
    ("notes.png", b"no picture", "is neither an image"),
    ("paper.pdf", b"%PDF-1.7 ...", "cannot be read as a PDF."),
    ("scan.pdf", pdf(""), "has no text; its pages may be pictures"),
    ("book.pdf", pdf(*["x" * 900] * 250), "has more than 200 kB of text: attach a part of it."),
    ("long.txt", b"x" * 200_001, "no text file in UTF-8 of up to 200 kB."),
    ("latin.txt", "é".encode("latin-1"), "no text file in UTF-8 of up to 200 kB."),
    ("half.png", png(1)[:40], "cannot be read as an image."),
    ("big.png", png(1) + bytes(20 * 1024 * 1024), "has 20.0 MB; an image may have at most 20 MB."),
]


@pytest.mark.parametrize(("name", "content", "reason"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_other_files_are_refused_with_a_sentence(
    talk: Talk, name: str, content: bytes, reason: str, tmp_path: Path
) -> None:
    for each, data in ((CAT["name"], CAT["buffer"]), (name, content)):  # a large one takes long through the protocol
        (tmp_path / each).write_bytes(data)
    talk.attach(tmp_path / CAT["name"], tmp_path / name)
    expect(talk.page.get_by_role("alert")).to_contain_text(reason if reason[:2] == "no" else f"{name} {reason}")
    expect(talk.attached()).to_have_count(1)
    ask(talk.page, "What?")
    expect(talk.page.get_by_role("alert")).to_have_count(0)


def test_a_file_that_is_gone_is_refused_by_name_in_its_chat_only(talk: Talk) -> None:
    ask(talk.page, "What?")
    talk.page.evaluate(
        "() => { Blob.prototype.arrayBuffer = async () => { throw new DOMException('x', 'NotFoundError'); }; }"
    )
    talk.attach(CAT)
    expect(talk.page.get_by_role("alert")).to_have_text("cat.png cannot be read: it may be a folder, or moved away.")
    talk.page.get_by_role("button", name="New chat").click()
    expect(talk.page.get_by_role("alert")).to_have_count(0)


def test_images_are_refused_for_a_model_that_reads_text(talk: Talk) -> None:
    talk.list(READS, SEES, {**SEES, "id": "later", "state": "unloaded"}, {**READS, "id": "text", "state": "unloaded"})
    expect(talk.page.get_by_label("Model", exact=True)).to_have_value("reads")
    talk.attach(CAT)
    expect(talk.page.get_by_role("alert")).to_have_text(
        "reads reads text only. Choose a model for images: sees, later."
    )
    expect(talk.attached()).to_have_count(0)
    for model in ("later", "sees"):
        talk.page.get_by_label("Model", exact=True).select_option(model)
        talk.attach(CAT)
        expect(talk.page.get_by_role("alert")).to_have_count(0)
    expect(talk.attached()).to_have_count(2)
    talk.page.get_by_label("Model", exact=True).select_option("reads")
    talk.page.get_by_role("button", name="Send", exact=True).click()
    expect(talk.page.get_by_role("alert")).to_contain_text("reads reads text only.")
    assert talk.bodies == []


def test_text_of_a_pdf_is_sent_with_the_numbers_of_its_pages(talk: Talk, tmp_path: Path) -> None:
    asked: list[str] = []
    talk.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    talk.list(READS)
    talk.attach(file("paper.pdf", pdf("The first page.", "", "The third one."), "application/pdf"))
    expect(talk.attached().locator("summary")).to_have_text("paper.pdf")
    assert {"pdf.js", "pdf.worker.js"} <= set(asked)
    talk.attached().locator("summary").click()
    picture(talk.page, "attached-pdf", tmp_path)
    ask(talk.page, "What is it about?")
    text = "[page 1]\nThe first page.\n\n[page 3]\nThe third one."
    assert talk.asked() == f"paper.pdf:\n```\n{text}\n```\n\nWhat is it about?"
    talk.page.reload()
    expect(talk.page.get_by_role("article", name="You").locator(".file summary")).to_have_text("paper.pdf")


@pytest.mark.parametrize(
    ("ordering", "cmap", "encoding", "text"),
    [
        ("GB1", "UniGB-UCS2-H", "utf-16-be", "首都是北京"),
        ("CNS1", "ETen-B5-H", "big5", "首都是臺北"),
        ("Japan1", "90ms-RKSJ-H", "shift_jis", "首都は東京です"),
        ("Korea1", "KSCms-UHC-H", "cp949", "수도는 서울입니다"),
    ],
)
def test_text_of_a_pdf_is_read_by_known_cmaps(talk: Talk, ordering: str, cmap: str, encoding: str, text: str) -> None:
    talk.list(READS)
    talk.attach(file("paper.pdf", pdf(text, font=cjk_font(ordering, cmap), encoding=encoding), "application/pdf"))
    expect(talk.attached().locator("summary")).to_have_text("paper.pdf")
    ask(talk.page, "What?")
    assert talk.asked() == f"paper.pdf:\n```\n{text}\n```\n\nWhat?"


def test_recording_is_sent_to_a_model_that_hears(talk: Talk, tmp_path: Path) -> None:
    talk.list(HEARS, WRITES, READS)
    talk.attach(file("note.wav", wave_file(), "audio/wav"))
    expect(talk.attached()).to_contain_text("note.wav")
    picture(talk.page, "attached-recording", tmp_path)
    assert violations(talk.page) == []
    ask(talk.page, "What is said?")
    data = base64.b64encode(wave_file()).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    assert talk.asked() == [part, {"type": "text", "text": "What is said?"}]
    talk.page.reload()
    shown = talk.page.get_by_role("article", name="You").locator("audio")
    wait_until(lambda: shown.evaluate("sound => sound.duration") == pytest.approx(0.1))
    talk.page.get_by_role("button", name="Code").click()
    expect(talk.page.locator(".panel")).to_contain_text("recordings are read from files")
    for program in talk.page.locator(".panel pre").all_inner_texts():
        assert data not in program
        assert "note.wav" in program
    talk.page.get_by_role("button", name="Close").click()
    talk.attach(file("note.wav", wave_file(), "audio/wav"))
    expect(talk.attached()).to_have_count(1)
    talk.page.get_by_label("Model", exact=True).select_option("reads")
    talk.page.get_by_role("button", name="Send", exact=True).click()
    expect(talk.page.get_by_role("alert")).to_have_text("reads reads text only. Choose a model for recordings: hears.")


def test_recording_is_written_down_where_the_chosen_model_does_not_hear(talk: Talk) -> None:
    held: list[Route] = []
    talk.page.route("**/v1/audio/transcriptions", lambda route: held.append(route))
    talk.list(READS, WRITES)
    talk.attach(file("talk.mp3", b"ID3" + bytes(100), "audio/mpeg"))
    expect(talk.page.get_by_text("Reading talk.mp3 …")).to_be_visible()
    expect(talk.page.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    wait_until(lambda: talk.page.evaluate("1") == len(held))
    assert b'filename="talk.mp3"' in (held[0].request.post_data_buffer or b"")
    held[0].fulfill(json={"text": " Buy two apples. "})
    expect(talk.attached().locator("summary")).to_have_text("talk.mp3")
    ask(talk.page, "What shall I buy?")
    assert talk.asked() == "talk.mp3:\n```\nBuy two apples.\n```\n\nWhat shall I buy?"
    talk.attach(file("talk.mp3", b"ID3" + bytes(100), "audio/mpeg"))
    expect(talk.page.get_by_text("Reading talk.mp3 …")).to_be_visible()
    wait_until(lambda: talk.page.evaluate("2") == len(held))
    held[1].fulfill(status=400, json={"error": {"message": "file is no recording", "code": "invalid_value"}})
    expect(talk.page.get_by_role("alert")).to_have_text("talk.mp3: file is no recording")


def test_text_files_become_part_of_the_text(talk: Talk) -> None:
    talk.list(READS)
    expect(talk.page.get_by_label("Model", exact=True)).to_have_value("reads")
    talk.attach(file("data.csv", b"a,b\n1,2\n", "text/csv"), file("notes.md", "```\nä\n```".encode()))
    expect(talk.attached()).to_have_count(2)
    ask(talk.page, "Sum up.")
    assert talk.asked() == "data.csv:\n```\na,b\n1,2\n```\n\nnotes.md:\n````\n```\nä\n```\n````\n\nSum up."
    own = talk.page.get_by_role("article", name="You")
    expect(own.locator(".bubble")).to_have_text("Sum up.")
    own.get_by_text("data.csv").click()
    expect(own.locator("details[open] pre")).to_have_text("a,b\n1,2\n")


def test_images_stay_with_their_turn_when_asked_again_and_edited(talk: Talk) -> None:
    talk.attach(CAT, file("dog.png", png(90)))
    expect(talk.attached()).to_have_count(2)
    ask(talk.page, "What?")
    talk.page.get_by_role("button", name="Regenerate").click()
    expect(answer(talk.page).get_by_label("Version 2 of 2")).to_be_visible()
    answered(talk.page)
    assert talk.bodies[1]["messages"] == talk.bodies[0]["messages"]
    talk.page.get_by_role("button", name="Edit", exact=True).click()
    edit = talk.page.locator(".edit")
    edit.get_by_role("button", name="Remove dog.png").click()
    edit.get_by_label("Edit your message").fill("Which animal?")
    edit.get_by_role("button", name="Send").click()
    own = talk.page.get_by_role("article", name="You")
    expect(own.get_by_label("Version 2 of 2")).to_be_visible()
    answered(talk.page)
    assert talk.asked() == [CAT_PART, {"type": "text", "text": "Which animal?"}]
    expect(own.get_by_role("img")).to_have_count(1)
    talk.page.get_by_role("button", name="Earlier version").first.click()
    expect(own.get_by_role("img")).to_have_count(2)


def test_images_are_exported_and_imported_with_their_chat(talk: Talk, tmp_path: Path) -> None:
    talk.attach(CAT, file("notes.txt", b"words"))
    expect(talk.attached()).to_have_count(2)
    ask(talk.page, "What?")
    with talk.page.expect_download() as found:
        talk.page.get_by_role("button", name="Export all").click()
    exported = tmp_path / "chats.json"
    found.value.save_as(exported)
    talk.page.locator(".chat-list summary").click()
    talk.page.get_by_role("button", name="Delete", exact=True).click()
    agree(talk.page, "Delete")
    expect(talk.page.get_by_text("No chats yet.")).to_be_visible()
    talk.page.get_by_label("Import").set_input_files(exported)
    talk.page.get_by_role("button", name="What?", exact=True).click()
    expect(talk.page.get_by_role("article", name="You").get_by_role("img", name="cat.png")).to_be_visible()
    expect(talk.page.get_by_role("article", name="You").locator("details")).to_have_count(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "x.png", "url": "https://evil.example/x.png"},
        {"name": "x.svg", "url": "data:image/svg+xml;base64,AAAA"},
        {"name": "../x.png", "url": url_of(png(1))},
        {"name": "x.txt"},
    ],
    ids=["remote", "svg", "path", "empty"],
)
def test_a_chat_with_another_attachment_is_not_imported(talk: Talk, tmp_path: Path, wrong: Any) -> None:
    turn = {"id": "t1", "parent": "root", "role": "user", "content": "Look!", "attachments": [wrong]}
    chat = {"id": "c", "title": "Look!", "created": 1, "updated": 1, "turns": {"t1": turn}, "chosen": {"root": "t1"}}
    imported = tmp_path / "chats.json"
    imported.write_text(json.dumps({"format": "genai-server chats", "version": 1, "chats": [chat]}))
    talk.page.get_by_label("Import").set_input_files(imported)
    expect(talk.page.get_by_role("alert")).to_contain_text("the file has no chats of genai-server")
    turn["attachments"] = []
    imported.write_text(json.dumps({"format": "genai-server chats", "version": 1, "chats": [chat]}))
    talk.page.get_by_label("Import").set_input_files(imported)
    expect(talk.page.get_by_role("button", name="Look!", exact=True)).to_be_visible()


def test_shown_programs_read_the_images_from_files(talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk.attach(file("it's a cat.png", CAT["buffer"]), file("it's a cat.png", png(90)))
    expect(talk.attached()).to_have_count(2)
    ask(talk.page, "What's `$HOME` here?")
    talk.page.get_by_role("button", name="Code").click()
    curl, python = talk.page.locator(".panel pre").all_inner_texts()
    assert "Images are read from files" in talk.page.locator(".panel").inner_text()
    for program in (curl, python):
        assert base64.b64encode(CAT["buffer"]).decode() not in program
    (tmp_path / "it's a cat.png").write_bytes(CAT["buffer"])
    (tmp_path / "2-it's a cat.png").write_bytes(png(90))
    sent = tmp_path / "sent"
    (tmp_path / "curl").write_text(f"#!/bin/sh\ncat >{sent}\n")
    (tmp_path / "curl").chmod(0o755)
    shell = f"PATH={tmp_path}:$PATH\n{curl}"
    subprocess.run(["sh", "-c", shell], cwd=tmp_path, check=True, timeout=90)
    assert json.loads(sent.read_text())["messages"] == talk.bodies[0]["messages"]

    given: dict[str, Any] = {}

    class Stopped(Exception):
        pass

    def create(_: object, **fields: Any) -> None:
        given.update(fields)
        raise Stopped

    monkeypatch.setattr("openai.resources.chat.completions.Completions.create", create)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stopped):
        exec(compile(python, "shown", "exec"), {})
    assert given["messages"] == talk.bodies[0]["messages"]


def test_an_image_that_is_left_out_is_named(talk: Talk) -> None:
    """A model may turn out to have no chat template for images once it is loaded."""
    talk.list({**SEES, "id": "demo", "state": "unloaded"})
    talk.page.unroute("**/v1/chat/completions")
    expect(talk.page.get_by_label("Model", exact=True)).to_have_value("demo")
    talk.attach(CAT)
    expect(talk.attached()).to_have_count(1)
    ask(talk.page, "say hello")
    expect(answer(talk.page)).to_contain_text("hello")
    expect(answer(talk.page)).to_contain_text("Had no effect: messages[0].content[0] (image)")
