"""Parses forms with a file (multipart/form-data) while they arrive (`FormParser`), and turns their fields into an
object that is validated like a JSON body (`form_object`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from genai_server.errors import InvalidField, MalformedForm, quoted

# The content type of a form, by which a route's parameter is declared as `Body(media_type=FORM)`.
FORM = "multipart/form-data"
# The field that has the file.
FILE = "file"
# Limits of the other fields of a form: their number, and their bytes together.
MAX_FIELDS = 64
MAX_FIELD_BYTES = 64 * 1024
# Limits of a part's headers: their number, and the bytes of each.
_MAX_HEADERS = 16
_MAX_HEADER_BYTES = 8192
_MAX_SHOWN = 100
# Characters of a file's name that are kept.
_MAX_NAME = 255


@dataclass(frozen=True)
class Upload:
    """A form that has been received completely: its fields, and the path of the temporary file that has the content of
    the form's file. `Uploads`, the receiver of forms, creates it.
    """

    # Name and value of each field but the file, in the order of the form.
    fields: list[tuple[str, str]]
    # Removed when the request has ended. None if the form has no file.
    file: Path | None
    # What the client calls the file; may be empty.
    file_name: str = ""


class FormParser:
    """Parses a form with a file incrementally. The caller passes the bytes to `feed`, takes the bytes of the file from
    `pending`, and calls `finish` at the end; `fields` then has the other fields.

    `headers` are those of the request. Raises MalformedForm if the content type is not that of a form.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        content_type = headers.get("content-type", "")
        kind, options = parse_options_header(content_type)
        if kind != FORM.encode() or not options.get(b"boundary"):
            shown = f"given {quoted(content_type[:_MAX_SHOWN])}" if content_type else "and its type is not given"
            raise MalformedForm(f"the body must be a form (content-type: multipart/form-data; boundary=…), {shown}")
        self.pending = bytearray()
        self.fields: list[tuple[str, str]] = []
        self.has_file = False
        self.file_name = ""
        self._num_bytes = 0
        self._is_complete = False
        # The current part: its headers, the header being read, its name, and its value unless it is the file.
        self._headers: dict[bytes, bytes] = {}
        self._header = (bytearray(), bytearray())
        self._name = ""
        self._value = bytearray()
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._begin,
                    "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add,
                    "on_part_end": self._end,
                    "on_end": self._complete,
                },
                max_header_count=_MAX_HEADERS,
                max_header_size=_MAX_HEADER_BYTES,
            )
        except FormParserError as error:
            raise MalformedForm(f"the body is not a form: {error}") from None

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the form. Bytes of the file are appended to `pending`.

        Raises MalformedForm if this is not a valid form, and InvalidField for a field that cannot be used.
        """
        if self._is_complete:
            return  # what follows the last part has no meaning
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise MalformedForm(f"the body is not a form: {error}") from None

    def finish(self) -> None:
        """Check that the form is complete, after all bytes have arrived. Raises MalformedForm if it is not."""
        if not self._is_complete:
            raise MalformedForm("the body is not a form: it ends before its last part does")

    def _begin(self) -> None:
        self._headers, self._name, self._value = {}, "", bytearray()

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[bytes(name).lower()] = bytes(value)
        self._header = (bytearray(), bytearray())

    def _end_headers(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"")
        if kind != b"form-data" or not name:
            raise MalformedForm("the body is not a form: a part has no name (content-disposition: form-data; name=…)")
        self._name = name.decode(errors="backslashreplace")
        if self._name == FILE:
            if self.has_file:
                raise InvalidField(FILE, "may be given once")
            self.has_file = True
            self.file_name = options.get(b"filename", b"").decode(errors="replace")[:_MAX_NAME]
        elif len(self.fields) == MAX_FIELDS:
            raise InvalidField(
                self._name, "is one field too many: besides file, a form may have at most", limit=MAX_FIELDS
            )
        else:
            self._count(len(name))

    def _add(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self.pending += memoryview(data)[start:end]
        else:
            self._count(end - start)
            self._value += memoryview(data)[start:end]

    def _end(self) -> None:
        if self._name == FILE:
            return
        try:
            self.fields.append((self._name, self._value.decode()))
        except UnicodeDecodeError:
            raise InvalidField(self._name, "must be valid UTF-8") from None

    def _complete(self) -> None:
        self._is_complete = True

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > MAX_FIELD_BYTES:
            raise InvalidField(
                self._name[:_MAX_SHOWN],
                "is the first beyond the limit of all fields besides file together,",
                limit=f"{MAX_FIELD_BYTES} bytes",
            )


def form_object(upload: Upload) -> dict[str, Any]:
    """Return the fields of a form as an object that can be validated like a JSON body, keyed by name and without empty
    fields.

    The values of a field such as `include[]` become a list; fields such as `expires_after[seconds]` become members of
    an object. The field `file` is the path of the temporary file with the uploaded content.

    Raises InvalidField for a field that is given twice, and for a text in the field `file`, because a client must not
    name a path.
    """
    form: dict[str, Any] = {} if upload.file is None else {FILE: upload.file}
    for field, value in upload.fields:
        name, bracket, _ = field.partition("[")
        if not value:
            continue
        if name == FILE and upload.file is None:
            raise InvalidField(FILE, f"must be given as {FILE}, with the content of a file", given=field[:_MAX_SHOWN])
        if field.endswith("[]"):
            values = form.setdefault(name, [])
            if isinstance(values, list):
                values.append(value)
                continue
        if bracket and (member := field[len(name) + 1 : -1]) and field.endswith("]"):
            members = form.setdefault(name, {})
            if isinstance(members, dict) and member not in members:
                members[member] = value
                continue
        if name in form:
            remedy = "" if bracket else f"; the values of a list are given as {name}[]"
            raise InvalidField(name, f"may be given once{remedy}")
        form[name] = value
    return form
