"""Order-free digests of multisets of sample identifiers.

The digest of a multiset is the sum, modulo 2^64, of a 64-bit hash of each of its identifiers. So it depends neither on
order nor on which rank or worker took what: digests of ranks, of parts of an epoch and of processes add up to that of
the whole. It is the same in every release, on every machine and with every version of torch, since the hash is:

- of an integer x: ``mix(x mod 2^64)``, the output function of splitmix64;
- of a text of code points c0, c1, …: ``mix(c0·w0 + c1·w1 + … mod 2^64)``, with the weights wj = ``mix(j) | 1``; a text
  of more than 256 code points is taken as the 32 hexadecimal digits of its BLAKE2b-128 (of UTF-8, lone surrogates as
  they are);
- of bytes: that of the text which they are in UTF-8, undecodable bytes as lone surrogates;
- of a tuple or list: that of its ``repr``, whose parts must be of these types.

Two identifiers chosen without knowledge of the hash share one with a probability of 2^-43 at most (texts that differ in
one code point by 2^20), and of about 2^-60 for texts that differ in a digit or a letter; integers never do.

    mix(x): x += 9e3779b97f4a7c15
            x ^= x >> 30; x *= bf58476d1ce4e5b9; x ^= x >> 27; x *= 94d049bb133111eb; x ^= x >> 31
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["as_text", "hash_integers", "hash_texts", "hashes", "hashes_of_lists", "of", "of_range", "total"]

Hashes = npt.NDArray[np.uint64]
Identifiers = Sequence[Any] | npt.NDArray[Any]

_LONGEST: Final = 256
_CHUNK: Final = 1 << 16
_INCREMENT: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def _mix(numbers: Hashes) -> Hashes:
    # In place after the first: fresh memory for each step would double the time.
    mixed = numbers + _INCREMENT
    mixed ^= mixed >> _30
    mixed *= _FIRST
    mixed ^= mixed >> _27
    mixed *= _SECOND
    mixed ^= mixed >> _31
    return mixed


_WEIGHTS: Final[Hashes] = _mix(np.arange(_LONGEST, dtype=np.uint64)) | np.uint64(1)


def hash_integers(numbers: npt.NDArray[np.int64]) -> Hashes:
    """Hash of each integer, shape (n,) to (n,)."""
    return _mix(numbers.view(np.uint64))


def hash_texts(texts: Sequence[str]) -> Hashes:
    """Hash of each text, (n,)."""
    if not len(texts):
        return np.zeros(0, dtype=np.uint64)
    points = _of_one_width(texts)
    if points is None:
        widths = set(map(len, texts))
        if max(widths) > _LONGEST:
            texts = [text if len(text) <= _LONGEST else _shortened(text) for text in texts]
        if widths == {0}:
            return _mix(np.zeros(len(texts), dtype=np.uint64))
        points = np.ascontiguousarray(np.array(texts, dtype="<U")).view("<u4").reshape(len(texts), -1)
    return _mix(points.astype(np.uint64) @ _WEIGHTS[: points.shape[1]])


def _of_one_width(texts: Sequence[str]) -> npt.NDArray[np.unsignedinteger[Any]] | None:
    """Their code points, (n, width), where all have as many: twice as fast as to have numpy look at each."""
    width, line = len(texts[0]), "\n".join(texts)
    between = len(texts) - 1
    if not 0 < width <= _LONGEST or len(line) != len(texts) * (width + 1) - 1:
        return None
    # Where each is as long as the first, the only line feeds are between them, at equal distances.
    if line.count("\n") != between or line[width :: width + 1] != "\n" * between:
        return None
    line += "\n"
    if line.isascii():
        return np.frombuffer(line.encode(), dtype=np.uint8).reshape(len(texts), -1)[:, :-1]
    encoded = line.encode("utf-32-le", errors="surrogatepass")
    return np.frombuffer(encoded, dtype="<u4").reshape(len(texts), -1)[:, :-1]


def _shortened(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def hashes(identifiers: Identifiers) -> Hashes:
    """Hash of each identifier, (n,). TypeError: one is no integer, text, bytes, tuple or list of them."""
    if not len(identifiers):
        return np.zeros(0, dtype=np.uint64)
    if isinstance(identifiers, np.ndarray) or not isinstance(identifiers[0], (str, bytes, tuple, list)):
        found = _as_integers(identifiers)
        if found is not None:
            return hash_integers(found)
    listed: Sequence[Any] = identifiers.tolist() if isinstance(identifiers, np.ndarray) else identifiers
    if all(issubclass(kind, str) for kind in set(map(type, listed))):
        return hash_texts(listed)
    return _hash_several([as_text(one) for one in listed])


def hashes_of_lists(lists: Sequence[Sequence[Any]]) -> Hashes:
    """Hash of each identifier of several lists or arrays, one after the other; see hashes."""
    numbers = array("q")
    try:
        for one in lists:
            if type(one) is list:
                numbers.fromlist(one)
            else:
                numbers.extend(one)
    except (TypeError, OverflowError):
        return hashes(list(chain.from_iterable(lists)))
    return hash_integers(np.frombuffer(numbers, dtype=np.int64))


def _as_integers(identifiers: Identifiers) -> npt.NDArray[np.int64] | None:
    """Them as integers modulo 2^64, if numpy takes them all for integers as they are."""
    try:
        array = np.asarray(identifiers)
    except (ValueError, TypeError, OverflowError):
        return None
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" and array.ndim == 1 else None


def _hash_several(identifiers: Sequence[int | str]) -> Hashes:
    """Of integers and texts among each other."""
    hashed = np.zeros(len(identifiers), dtype=np.uint64)
    numbers = [place for place, one in enumerate(identifiers) if not isinstance(one, str)]
    texts = [place for place, one in enumerate(identifiers) if isinstance(one, str)]
    wrapped = np.array([int(identifiers[place]) % (1 << 64) for place in numbers], dtype=np.uint64)
    hashed[numbers] = _mix(wrapped)
    hashed[texts] = hash_texts([str(identifiers[place]) for place in texts])
    return hashed


def as_text(identifier: Any) -> int | str:
    """The integer or text that stands for an identifier. Raises TypeError if it is of no supported type."""
    if isinstance(identifier, str):
        return identifier
    if isinstance(identifier, bytes):
        return identifier.decode(errors="surrogateescape")
    if isinstance(identifier, (tuple, list)):
        return repr(tuple(as_text(part) for part in identifier))
    try:
        return int(identifier.__index__())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"a sample's identifier is {type(identifier).__name__!r}: give integers, texts, bytes or tuples of them"
        ) from None


def total(hashed: Hashes) -> int:
    """Digest of what has these hashes."""
    return int(hashed.sum(dtype=np.uint64))


def of(identifiers: Identifiers) -> int:
    """Digest of identifiers, see hashes."""
    parts = range(0, len(identifiers), _CHUNK)
    return sum(total(hashes(identifiers[start : start + _CHUNK])) for start in parts) % (1 << 64)


def of_range(count: int) -> int:
    """Digest of the integers 0 to count - 1."""
    parts = range(0, count, _CHUNK)
    return sum(
        total(hash_integers(np.arange(start, min(start + _CHUNK, count), dtype=np.int64))) for start in parts
    ) % (1 << 64)
