"""Read JSON documents (RFC 8259, UTF-8) written by users or other programs."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections import Counter
from typing import Any, BinaryIO, NoReturn

from hostrouting.model.errors import ConfigError, FileError
from hostrouting.model.opening import NotRegularError, only_regular
from hostrouting.model.text import shown

CONFIG_BYTES_MAX = 64 << 20
_CHUNK_BYTES = 1 << 20
# The first bytes of compressed files, see file(1).
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"PK\3\4": "zip",
}
# The first word of an error message or of ip's text, such as "ssh:" or "default". A file that isn't
# JSON may contain a password, so only its first word is quoted.
_FIRST_WORD = re.compile(r"\s*((?:[A-Za-z]{1,15}|[0-9]{1,5}):?)[ \t]")


def read_config(path: str | os.PathLike[str]) -> Any:
    """Read a config file as JSON, without validating its keys and values.

    Raises:
        ConfigError: the file doesn't exist or isn't valid JSON.
        FileError: the file can't be read.
        TypeError: the argument isn't a path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"Config.load takes the path of a file, not {shown(path)}; "
            "make a Config from a document with Config.from_mapping(mapping)"
        )
    return read_document(path, "config", bytes_max=CONFIG_BYTES_MAX)


def read_document(path: str | os.PathLike[str], what: str, *, bytes_max: int) -> Any:
    """Read a JSON file.

    Args:
        path: the file's path.
        what: the kind of document in one word, such as "config", for error messages.
        bytes_max: the maximum file size.

    Returns:
        The document. The document may contain duplicate keys, which ``validation.read`` rejects.

    Raises:
        ConfigError: the file doesn't exist or isn't valid JSON.
        FileError: the file can't be read.
    """
    name = str(path)
    try:
        with open(name, "rb", opener=only_regular) as file:
            return parse_document(file, name, what, bytes_max=bytes_max)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError([(name, "there is no such file")]) from None
    except IsADirectoryError:
        raise ConfigError([(name, "is a directory; expected a JSON file")]) from None
    except NotRegularError:
        instead = ", or - for standard input" if what == "snapshot" else ""
        problem = f"is not a regular file; expected a JSON file{instead}"
        raise ConfigError([(name, problem)]) from None
    except OSError as error:
        raise FileError.of(f"read the {what} {name}", error) from error
    except ValueError as error:  # a NUL in the path
        raise ConfigError([(repr(name), f"is not a path: {error}")]) from None


def parse_document(
    file: BinaryIO,
    name: str,
    what: str,
    *,
    bytes_max: int,
) -> Any:
    """Read an open JSON file.

    Args:
        file: the file, which is read until EOF.
        name: the file's name for error messages.
        what: as for ``read_document``.
        bytes_max: the maximum file size.

    Returns:
        The document, as from ``read_document``.

    Raises:
        ConfigError: the file isn't valid JSON.
        OSError: the file can't be read.
    """

    # Python's json writes and reads NaN and Infinity, which JSON doesn't have.
    def refuse_constant(word: str) -> NoReturn:
        raise ConfigError([(name, f"is not JSON: {word} is not a JSON number")])

    raw = _read_at_most(file, bytes_max + 1)
    if len(raw) > bytes_max:
        raise ConfigError([(name, f"is not a {what}: it is larger than {bytes_max >> 20} MiB")])
    if not raw.strip():
        reason = "a shell empties the file that it redirects output to, before we read it"
        raise ConfigError([(name, f"is empty ({reason})")])
    if raw.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        # Notepad and PowerShell write a BOM at the start of files.
        problem = "begins with a byte order mark (BOM): save it as UTF-8 without BOM"
        raise ConfigError([(name, problem)])
    for magic, compression in _COMPRESSED.items():
        if raw.startswith(magic):
            raise ConfigError([(name, f"is compressed with {compression}: decompress it first")])
    try:
        # Decode as os.fsdecode does: the kernel allows any bytes in interface names, and ip prints
        # them unchanged.
        text = raw.decode("utf-8", "surrogateescape")
        return json.loads(text, object_pairs_hook=_json_object, parse_constant=refuse_constant)
    except RecursionError:
        raise ConfigError([(name, f"is not a {what}: it is nested too deeply")]) from None
    except json.JSONDecodeError as error:
        cause = _likely_cause(text, error, what)
        raise ConfigError([(name, f"is not JSON: {error}{cause}")]) from None
    except ValueError:  # from int(), which refuses thousands of digits
        problem = f"is not a {what}: a number in it has thousands of digits"
        raise ConfigError([(name, problem)]) from None


def _read_at_most(file: BinaryIO, count: int) -> bytes:
    # A single read of this size would allocate all the memory at once, even for a short file.
    chunks: list[bytes] = []
    while count > 0 and (chunk := file.read(min(count, _CHUNK_BYTES))):
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


def _likely_cause(text: str, error: json.JSONDecodeError, what: str) -> str:
    """Return a clause on why a document isn't JSON. If the cause isn't clear, it is empty.

    Args:
        text: the document's text.
        error: the JSON parser's error.
        what: as for ``read_document``.
    """
    found = text[error.pos :]
    if found.startswith(("//", "/*", "#")):
        return "; JSON has no comments"
    if what != "snapshot":
        return ""
    if not text.lstrip().startswith(("{", "[")):
        word = _FIRST_WORD.match(text)
        begins = f"it begins with {word[1]!r}" if word else "it doesn't begin with {"
        wanted = "expected the output of hostrouting snapshot, or of ip -j, and nothing else"
        return f"; {begins}: {wanted}"
    if not found.strip() or error.msg.startswith("Unterminated string"):
        return "; it ends early"
    if text[: error.pos].rstrip().endswith(":"):
        printed = "nothing" if found.startswith((",", "}")) else "no JSON"
        return f"; the command before it printed {printed}: does its ip know -j?"
    return ""


class _Doubled(dict[str, Any]):
    """A JSON object with duplicate keys.

    The dict holds the last value of each key; ``first`` holds the first values.
    """

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.first = dict(reversed(pairs))
        times = Counter(name for name, _ in pairs)
        self.duplicates = tuple(name for name in times if times[name] > 1)


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from key-value pairs (an ``object_pairs_hook`` for ``json.loads``)."""
    document = dict(pairs)
    return document if len(document) == len(pairs) else _Doubled(pairs)
