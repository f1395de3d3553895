"""The content of an entry of the on-disk cache is validated before use, even if its checksum is right."""

from __future__ import annotations

import json
import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cache_faults import one_warning
from tests.unit.pickled_kernels import doubled
from tiledsl import Global, cdiv, f32, grid, threads, tile_kernel
from tiledsl.backends.ptx.cubin import is_cubin_of
from tiledsl.compilation import cache as cache_module
from tiledsl.compilation import compiler
from tiledsl.compilation.cache import DiskCache, disk_cache, packed, unpacked
from tiledsl.compilation.compiled import Image
from tiledsl.compilation.compiler import compile_kernel, load_kernel, sealed, unsealed
from tiledsl.compilation.fingerprint import entry_key
from tiledsl.dims import M
from tiledsl.ir.types import F32
from tiledsl.signatures.signature import GlobalSpec, Signature, Specialization

SPEC = Specialization((("X", GlobalSpec(F32, 0, 16)),), ())
KEY = entry_key({"a": "b"})


@tile_kernel
def tripled(X: Global[f32, M]):
    i = grid(cdiv(M, 32)) * 32 + threads(32)
    X.put(i, X.get(i) * 3.0)


def built(signature: Signature, arch: str = "sm_90a") -> Image:
    return compiler.build(signature, SPEC, arch)


@pytest.fixture(scope="module")
def image() -> Image:
    return built(doubled.signature)


@pytest.fixture(scope="module")
def others() -> list[Image]:
    """Return another kernel, that kernel with the name of the first, and the first for another target."""
    named = replace(tripled.signature, name=doubled.name)
    return [built(tripled.signature), built(named), built(doubled.signature, "sm_80")]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "disk_parts", lambda *given: {"a": "b"})
    cache_module._warned.clear()
    found = disk_cache()
    assert found is not None
    return found


def loaded() -> Any:
    return load_kernel(doubled.signature, SPEC, "sm_90a", doubled.builds.meaning())


def read(content: bytes) -> Image | None:
    return unsealed(content, KEY, doubled.signature, SPEC, "sm_90a")


def with_header(image: Image, header: dict[str, Any]) -> Image | None:
    """Return the image that is read from one with another header and a right seal."""
    stages = image.to_bytes().split(b"\0", 1)[1]
    content = json.dumps(header).encode() + b"\0" + stages
    return read(compiler._seal(KEY, content) + content)


NONSENSE = [
    b"", b"\0\0\0", b"{}", b"{}\0\0\0", b"not json\0\0\0", b"[" * 100_000 + b"\0\0\0", b"null\0\0\0", b"{}\0\xff\0\0",
]  # fmt: skip


@pytest.mark.parametrize("content", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_no_image(content: bytes) -> None:
    assert Image.from_bytes(content) is None and read(content) is None


def test_a_wrong_entry_is_dropped_with_a_warning_and_made_again(
    cache: DiskCache, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "build", lambda *given: image)
    short = replace(image, cubin=image.cubin[:-1])
    cache.store(KEY, sealed(short, KEY))
    with one_warning("is damaged; the kernel is compiled again"):
        assert loaded() is None
    assert cache.info()[0] == 0
    meaning = doubled.builds.meaning()
    assert not compile_kernel(doubled.signature, SPEC, "sm_90a", meaning).cached
    assert compile_kernel(doubled.signature, SPEC, "sm_90a", meaning).cached


def test_what_could_not_be_loaded_is_not_stored(
    cache: DiskCache, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(image, cubin=image.cubin[:-1])
    monkeypatch.setattr(compiler, "build", lambda *given: short)
    monkeypatch.setattr(compiler, "_WARNED", set[Any]())
    with one_warning("doubled.. is compiled again by each process"):
        compile_kernel(doubled.signature, SPEC, "sm_90a", doubled.builds.meaning())
    assert cache.info()[0] == 0


def test_code_of_another_kernel_is_none(image: Image, others: list[Image]) -> None:
    assert is_cubin_of(image, image.block) and read(sealed(image, KEY)) == image
    for other in others:
        assert read(sealed(other, KEY)) is None or other.arch == image.arch, "of another name or target"
        assert read(sealed(replace(image, cubin=other.cubin), KEY)) is None
        assert read(sealed(replace(image, cubin=other.cubin, ptx=other.ptx), KEY)) is None or other is others[1]
    assert read(sealed(image, entry_key({"a": "c"}))) is None
    half = Specialization((("Y", GlobalSpec(F32, 0, 16)),), ())
    assert unsealed(sealed(image, KEY), KEY, doubled.signature, half, "sm_90a") is None


WRONG: list[Any] = [
    None, True, -1, 1.5, float("nan"), 10**400, "x", "", [], [[]], {}, {"x": 1}, [None], [-1], ["x"], ["a b"],
]  # fmt: skip


def test_a_header_that_lacks_a_field_or_has_one_of_another_type_is_none(image: Image) -> None:
    """This holds for each field, also of the resources and of each argument."""
    header = json.loads(image.to_bytes().split(b"\0")[0])
    used = header["resources"]
    count = 0
    for name in header:
        assert with_header(image, {key: value for key, value in header.items() if key != name}) is None
        for wrong in WRONG:
            possible = {"written": ([],), "tensor_maps": ([],), "dependent": (True,)}.get(name, ())
            if wrong not in possible:
                assert with_header(image, {**header, name: wrong}) is None, (name, wrong)
                count += 1
    for name in used:
        for wrong in WRONG:
            if not (name == "limiter" and isinstance(wrong, str)):
                changed = {**used, name: wrong}
                assert with_header(image, {**header, "resources": changed}) is None, (name, wrong)
    for number in range(5):
        for wrong in WRONG:
            row = [*header["abi"][0]]
            row[number] = wrong
            if (number, wrong) not in ((3, -1), (4, [])):
                changed = {**header, "abi": [row, *header["abi"][1:]]}
                assert with_header(image, changed) is None, (number, wrong)
    assert count > 100 and with_header(image, header) == image


def test_no_cut_of_a_cubin_is_one(image: Image) -> None:
    for size in range(0, len(image.cubin), 97):
        assert not is_cubin_of(replace(image, cubin=image.cubin[:size]), image.block)
    chance = random.Random(1)
    for _ in range(300):  # nothing else is said of these: it is found by the checksum
        data = bytearray(image.cubin)
        for _ in range(chance.randint(1, 30)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        assert is_cubin_of(replace(image, cubin=bytes(data)), image.block) in (True, False)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return the data with bytes exchanged, dropped, added, or cut off."""
    at, length = chance.randrange(len(data)), chance.randint(1, 64)
    match chance.randrange(4):
        case 0:
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + length :]
        case 2:
            return data[:at] + chance.randbytes(length) + data[at:]
        case _:
            return data[:at]


@pytest.mark.parametrize("what", ["file", "packed", "content"])
def test_mutated_entries_are_dropped(cache: DiskCache, image: Image, what: str) -> None:
    """Mutations are of the file itself, of the bytes that its checksum covers, or of their unpacked content."""
    chance = random.Random(f"entries {what}")
    good = sealed(image, KEY)
    cache.store(KEY, good, {"name": "k"})
    path = cache.folder / f"{KEY}.entry"
    whole = path.read_bytes()
    for _ in range(60):
        cache_module._warned.clear()
        if what == "content":
            cache.store(KEY, mutated(good, chance), {"name": "k"})
        elif what == "file":
            path.write_bytes(mutated(whole, chance))
        else:
            data = mutated(packed(good), chance)
            if unpacked(data) == good:  # zlib has several texts for the same content
                continue
            path.write_bytes(cache_module._head(KEY, b"{}\0" + data) + b"{}\0" + data)
        path.chmod(0o600)
        assert isinstance(cache.entries()[0].note, dict)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert loaded() is None
        assert len(caught) == 1 and not path.exists()


def test_an_entry_that_unpacks_without_end_is_damaged(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MOST_CONTENT", 1 << 16)
    assert unpacked(packed(b"\0" * (1 << 16))) is not None and unpacked(packed(b"\0" * (1 << 16) + b"x")) is None
    cache.store(KEY, b"\0" * (1 << 20))
    with one_warning("is damaged"):
        assert cache.load(KEY) is None
    cache.store(KEY, b"")
    with open(cache.folder / f"{KEY}.entry", "r+b") as file:
        file.truncate(1 << 40)  # without any blocks on the disk
    with one_warning("is not a file of yours"):
        assert cache.load(KEY) is None
