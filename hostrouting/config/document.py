"""Read a JSON document (RFC 8259, UTF-8) from outside, or say in one sentence why it isn't one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

from hostrouting.config.schema import JsonObject
from hostrouting.model.errors import ConfigError, FileError

if TYPE_CHECKING:
    import os

__all__ = ["parse_document", "read_document"]


def read_document(path: str | os.PathLike[str], what: str, *, bytes_max: int) -> Any:
    """Read a file.

    Args:
        path: of the file.
        what: it should be, in a word, for the messages.
        bytes_max: a larger file is refused.

    Returns:
        The document, its objects as ``JsonObject``.

    Raises:
        ConfigError: there is no such file, or it isn't JSON.
        FileError: it can't be read.
    """
    try:
        with open(path, "rb") as file:
            return parse_document(file, str(path), what, bytes_max=bytes_max)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError([(str(path), "there is no such file")]) from None
    except IsADirectoryError:
        raise ConfigError([(str(path), "is a directory; expected a JSON file")]) from None
    except OSError as error:
        raise FileError.of(f"read the {what} {path}", error) from error
    except ValueError as error:  # a NUL in the path
        raise ConfigError([(repr(str(path)), f"is not a path: {error}")]) from None


def parse_document(file: BinaryIO, name: str, what: str, *, bytes_max: int) -> Any:
    """Read an open file.

    Args:
        file: from where it is read to its end.
        name: of the file, for the messages.
        what: it should be, in a word.
        bytes_max: a larger one is refused.

    Returns:
        The document, its objects as ``JsonObject``.

    Raises:
        ConfigError: it isn't JSON.
        OSError: it can't be read.
    """
    import json

    raw = file.read(bytes_max + 1)
    if len(raw) > bytes_max:
        raise ConfigError([(name, f"is no {what}: it is larger than {bytes_max >> 20} MiB")])
    if not raw.strip():
        raise ConfigError(
            [(name, "is empty (a shell empties the file that it redirects output to, before we read it)")]
        )
    try:
        # As os.fsdecode would: to the kernel any bytes make an interface's name, and ip prints them as they are.
        return json.loads(raw.decode("utf-8", "surrogateescape"), object_pairs_hook=JsonObject)
    except RecursionError:
        raise ConfigError([(name, f"is not a {what}: it is nested too deeply")]) from None
    except ValueError as error:
        raise ConfigError([(name, f"is not JSON: {error}")]) from None
