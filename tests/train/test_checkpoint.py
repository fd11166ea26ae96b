"""Checkpoints: whole or passed over, ours or ignored, and the weights they name stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ring.communicator import Communicator
from spark_ring.data.store import Store
from spark_ring.train.checkpoint import Checkpoint, CheckpointFolder, decode, encode


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def folder(store: Store, fingerprint: str = "job") -> CheckpointFolder:
    return CheckpointFolder(store, "run", fingerprint, ".bin")


def checkpoint(epoch: int, weights: str = "", fingerprint: str = "job") -> Checkpoint:
    return Checkpoint(
        epoch=epoch,
        history=[{"epoch": n, "loss": 1.0 / 3.0 / n} for n in range(1, epoch + 1)],
        monitor={"best": float("inf")},
        weights=weights,
        fingerprint=fingerprint,
        state=bytes(range(256)) * epoch,
    )


def test_a_checkpoint_comes_back_to_the_last_bit() -> None:
    assert decode(encode(checkpoint(3))) == checkpoint(3)


@pytest.mark.parametrize("size", [0, 5, 40, 100, -1])
def test_a_partial_file_is_noticed_wherever_it_ends(size: int) -> None:
    with pytest.raises(ValueError, match=r"digest|no checkpoint"):
        decode(encode(checkpoint(1))[:size])


def test_a_flipped_bit_is_noticed_wherever_it_is() -> None:
    data = encode(checkpoint(1))
    for place in range(18, len(data), 37):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(ValueError, match="digest"):
            decode(bytes(damaged))


def test_the_last_two_are_kept(store: Store) -> None:
    mine = folder(store)
    for epoch in range(1, 5):
        mine.write(checkpoint(epoch))
    assert store.list("runs/run/checkpoints") == ["epoch-00003", "epoch-00004"]
    assert folder(store).newest() == checkpoint(4)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(store: Store) -> None:
    """Case 95."""
    mine = folder(store)
    mine.write(checkpoint(1))
    mine.write(checkpoint(2))
    path = Path(store.path("runs/run/checkpoints/epoch-00002"))
    path.write_bytes(path.read_bytes()[:-7])
    assert folder(store).newest() == checkpoint(1)
    mine.write(checkpoint(2))
    assert folder(store).newest() == checkpoint(2)


def test_a_checkpoint_of_another_job_is_never_read_and_soon_gone(store: Store) -> None:
    """Case 130."""
    old = folder(store, "old")
    for epoch in (4, 5):
        old.write(checkpoint(epoch, fingerprint="old"))
    mine = folder(store)
    assert mine.newest() is None
    mine.write(checkpoint(1))
    assert store.list("runs/run/checkpoints") == ["epoch-00001"]


def test_weights_stay_as_long_as_a_checkpoint_names_them(store: Store) -> None:
    mine = folder(store)
    best = mine.write_weights(1, b"first")
    mine.write(checkpoint(1, best))
    mine.write(checkpoint(2, best))
    better = mine.write_weights(3, b"third")
    mine.write(checkpoint(3, better))
    assert store.list("runs/run/weights") == ["epoch-00001.bin", "epoch-00003.bin"]
    folder(store).write(checkpoint(4, better))  # a new attempt, which has not read the older checkpoint
    assert store.list("runs/run/weights") == ["epoch-00003.bin"]
    assert store.read_bytes(better) == b"third"


def test_a_checkpoint_whose_weights_are_gone_is_passed_over(store: Store) -> None:
    mine = folder(store)
    mine.write(checkpoint(1))
    best = mine.write_weights(2, b"second")
    mine.write(checkpoint(2, best))
    store.delete(best)
    assert folder(store).newest() == checkpoint(1)


def test_foreign_names_in_the_folder_do_no_harm(store: Store) -> None:
    store.write_bytes("runs/run/checkpoints/epoch-00009.part", b"")
    store.write_bytes("runs/run/checkpoints/notes.txt", b"hello")
    assert folder(store).newest() is None


def test_resume_gives_what_rank_0_found(store: Store, alone: Communicator) -> None:
    assert folder(store).resume(alone) is None
    folder(store).write(checkpoint(2))
    assert folder(store).resume(alone) == checkpoint(2)
