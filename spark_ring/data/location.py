"""One place, many spellings: what a user may write for a store's root.

==============================================================  ==================  ==================
written                                                         on this machine     to Spark
==============================================================  ==================  ==================
``/x``, ``x`` (made absolute), ``~/x``, ``pathlib.Path``,       ``/x``              ``file:///x``
``file:/x``, ``file:///x``
``dbfs:/x``, ``dbfs:///x``, ``/dbfs/x``, ``file:/dbfs/x``,      ``/dbfs/x``         ``dbfs:/x``
``file:///dbfs/x``
``/Volumes/c/s/v``, ``dbfs:/Volumes/c/s/v``,                    ``/Volumes/c/s/v``  ``/Volumes/c/s/v``
``file:/Volumes/c/s/v``
==============================================================  ==================  ==================

Text after the scheme is taken literally, as Hadoop takes it: ``%20`` is three characters, and spaces, ``#``,
``+`` and letters of any alphabet need no escape. What Hadoop reads as a pattern or cannot hold is refused
here, before anything is written: ``* ? [ ] { } \\ :`` and control characters.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from spark_ring.errors import ConfigError

__all__ = ["MANIFEST_NAME", "Location", "locate"]

#: The file in a dataset's folder that is written last and makes it a dataset.
MANIFEST_NAME = "_manifest.json"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)
_REFUSED = re.compile(r"[*?\[\]{}\\:\x00-\x1f\x7f]")
_EXAMPLES = "'/data/store', 'file:/data/store', 'dbfs:/ml/store' or '/Volumes/main/ml/store'"


@dataclass(frozen=True)
class Location:
    """A store's root.

    Attributes:
        path: absolute path on this machine, without a trailing slash (but for ``/`` itself).
        spark: the same folder as Spark is told of it.
    """

    path: str
    spark: str


def locate(url: str | os.PathLike[str]) -> Location:
    """Understand a store's root.

    Raises:
        ConfigError: an unknown scheme, a host where none can be, or a character that Spark cannot hold.
    """
    text = os.fspath(url)
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"the store is {text!r}; it must be a folder, for example {_EXAMPLES}")
    match = _SCHEME.fullmatch(text)
    if match is None:
        return _canonical(text, os.path.abspath(os.path.expanduser(text)))
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        return _canonical(text, _without_host(text, scheme, rest))
    if scheme == "dbfs":
        path = _without_host(text, scheme, rest)
        return _canonical(text, path if _inside(path, "/Volumes") else "/dbfs" + path)
    raise ConfigError(
        f"store {text!r}: the scheme {scheme!r} is not supported; use {_EXAMPLES}, or mount it as a folder"
    )


def _without_host(text: str, scheme: str, rest: str) -> str:
    """``/x`` and ``///x`` name a path; ``//x/y`` names a host x, which neither scheme has."""
    if rest.startswith("//") and not rest.startswith("///"):
        raise ConfigError(
            f"store {text!r}: {rest[2:].split('/')[0]!r} would be a host; write '{scheme}:/{rest[2:]}'"
        )
    if not rest.startswith("/"):
        raise ConfigError(f"store {text!r} has no absolute path; write '{scheme}:/{rest}'")
    return rest


def _canonical(text: str, path: str) -> Location:
    path = "/" + os.path.normpath(path).lstrip("/")
    bad = _REFUSED.search(path)
    if bad:
        raise ConfigError(
            f"store {text!r}: Spark cannot use the character {bad[0]!r} in a folder's name; rename the folder"
        )
    if _inside(path, "/dbfs/Volumes"):
        path = path.removeprefix("/dbfs")
    if _inside(path, "/Volumes"):
        return Location(path, path)
    if _inside(path, "/dbfs"):
        return Location(path, "dbfs:" + (path.removeprefix("/dbfs") or "/"))
    return Location(path, "file://" + path)


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
