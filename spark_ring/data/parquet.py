"""The reader: one rank's batches of a materialized dataset."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import TracebackType

import numpy as np

from spark_ring.data.batch import Batch
from spark_ring.data.decode import Arrays, Decoder, row_bytes
from spark_ring.data.manifest import Manifest
from spark_ring.data.pipeline import Chunk, Pipeline
from spark_ring.data.schema import Contract
from spark_ring.data.shards import EpochPlan, Layout
from spark_ring.data.store import Store
from spark_ring.errors import ConfigError, DataError

__all__ = ["BatchIterator", "ParquetReader", "default_window_rows"]

_WINDOW_BYTES = 64 << 20
_WINDOW_ROWS = 1 << 18
_CHUNK_BYTES = 4 << 20
_CHUNK_STEPS = 256


def default_window_rows(contract: Contract) -> int:
    """Rows shuffled at a time over all ranks: 64 MiB of them, at most 262,144, at least 256."""
    return max(256, min(_WINDOW_ROWS, _WINDOW_BYTES // max(1, row_bytes(contract.tensors))))


class ParquetReader:
    """Reads one rank's share of a split, epoch after epoch.

    Every row is read exactly once per epoch over all ranks, and every rank takes the same number of steps.
    With ``shuffle`` the set of rows of each global batch depends on seed, epoch, ``batch_size * size``,
    ``lanes`` and ``window_rows``, but not on the number of ranks; see :mod:`spark_ring.data.shards`.

    Args:
        store: the store.
        dataset: the dataset's folder, relative to the store's root.
        manifest: what the dataset holds.
        contract: the tensors to read.
        split: name of the split.
        rank: this rank.
        size: world size.
        batch_size: rows per rank and step.
        shuffle: a new order each epoch; ``False`` keeps the written order.
        seed: of the shuffle; any integer.
        lanes: in how many places the data are read at a time, over all ranks; used when shuffling data
            larger than the window. A multiple of the number of ranks reads nothing twice.
        window_rows: rows shuffled at a time over all ranks; ``None``: :func:`default_window_rows`.
        contiguous: without shuffle, give each rank one contiguous part instead of every rank the same pass
            over all row groups. Steps then hold other rows at another number of ranks: for validation.
        prefetch: chunks (a batch, or up to 4 MiB of small ones) held ready.
        threads: decoding threads.

    Raises:
        DataError: the split has no rows.
        ManifestError: there is no such split.
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        store: Store,
        dataset: str,
        manifest: Manifest,
        contract: Contract,
        *,
        split: str = "train",
        rank: int,
        size: int,
        batch_size: int,
        shuffle: bool,
        seed: int,
        lanes: int = 16,
        window_rows: int | None = None,
        contiguous: bool = False,
        prefetch: int = 4,
        threads: int = 2,
    ) -> None:
        for name, value in (("prefetch", prefetch), ("threads", threads)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if not 0 <= rank < size:
            raise ConfigError(f"rank is {rank}; with {size} ranks it must be 0 to {size - 1}")
        if shuffle and contiguous:
            raise ConfigError(
                "contiguous=True is for reading without shuffle; set shuffle=False or leave it out"
            )
        groups = manifest.row_groups(split)
        if not manifest.rows(split):
            raise DataError(f"split {split!r} of dataset {dataset!r} has no rows")
        self.contract = contract
        self.rank = rank
        self.seed, self.shuffle = seed, shuffle
        self.window_rows = default_window_rows(contract) if window_rows is None else window_rows
        self._layout = Layout.plan(
            manifest.rows(split),
            batch_size,
            size,
            lanes,
            shuffle=shuffle,
            contiguous=contiguous,
            window_rows=self.window_rows,
        )
        self._group_rows = [group.rows for group in groups]
        self._decoder = Decoder(store, dataset, groups, contract)
        self._prefetch, self._threads = prefetch, threads
        bytes_per_batch = batch_size * max(1, row_bytes(contract.tensors))
        self._chunk_steps = min(_CHUNK_STEPS, max(1, _CHUNK_BYTES // bytes_per_batch))
        self._waited = 0.0
        self._open: weakref.WeakSet[BatchIterator] = weakref.WeakSet()

    @property
    def steps(self) -> int:
        """Steps of an epoch, the same on every rank."""
        return self._layout.steps

    @property
    def rows(self) -> int:
        """Rows this rank reads in one epoch."""
        return self._layout.rank_rows(self.rank)

    @property
    def global_rows(self) -> int:
        """Rows of the split, which all ranks together read in one epoch."""
        return self._layout.rows

    @property
    def wait_seconds(self) -> float:
        """Seconds the consumer has waited for data, over all epochs."""
        return self._waited + sum(iterator.wait_seconds for iterator in self._open)

    def epoch(self, epoch: int, start_step: int = 0) -> BatchIterator:
        """Start reading an epoch in the background.

        Args:
            epoch: number of the epoch; with ``shuffle``, each has an order of its own.
            start_step: steps already done; the batches that follow are those of the undisturbed epoch.

        Returns:
            An iterator over ``steps - start_step`` batches. Its threads end with it: at its end, by its
            ``close``, by the reader's ``close``, or when nobody refers to it any more.

        Raises:
            ConfigError: ``start_step`` is not a step of the epoch.
        """
        if not 0 <= start_step <= self.steps:
            raise ConfigError(f"start_step is {start_step}; the epoch has {self.steps} steps")
        plan = EpochPlan(
            self._layout,
            self._group_rows,
            window_rows=self.window_rows,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
        )
        pipeline = Pipeline(
            self._decoder,
            self.contract.tensors,
            plan,
            rank=self.rank,
            start_step=start_step,
            chunk_steps=self._chunk_steps,
            prefetch=self._prefetch,
            threads=self._threads,
        )
        iterator = BatchIterator(self, pipeline)
        self._open.add(iterator)
        return iterator

    def preview(self, rows: int) -> Batch:
        """Return the first rows of the split in written order, as one batch of at most ``rows`` rows."""
        parts: list[Arrays] = []
        found = 0
        for number, count in enumerate(self._group_rows):
            if found >= rows:
                break
            take = min(count, rows - found)
            parts.append({name: array[:take] for name, array in self._decoder(number).items()})
            found += take
        arrays = {s.name: np.concatenate([part[s.name] for part in parts]) for s in self.contract.tensors}
        return self._batch(arrays, found, found, 0)

    def close(self) -> None:
        """End every epoch that is being read, and its threads."""
        for iterator in list(self._open):
            iterator.close()

    def _batches(self, chunk: Chunk) -> Iterator[Batch]:
        for number in range(chunk.steps):
            start, step = number * chunk.rows, chunk.step + number
            arrays = {name: array[start : start + chunk.rows] for name, array in chunk.arrays.items()}
            yield self._batch(arrays, chunk.rows, self._layout.step_rows(step), step)

    def _batch(self, arrays: Arrays, rows: int, global_rows: int, step: int) -> Batch:
        contract = self.contract
        return Batch(
            inputs={spec.name: arrays[spec.name] for spec in contract.inputs},
            labels={spec.name: arrays[spec.name] for spec in contract.labels},
            weight=arrays[contract.weight.name] if contract.weight else None,
            rows=rows,
            global_rows=global_rows,
            step=step,
        )

    def _finished(self, iterator: BatchIterator) -> None:
        if iterator in self._open:
            self._open.discard(iterator)
            self._waited += iterator.wait_seconds

    def __enter__(self) -> ParquetReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BatchIterator:
    """The batches of one epoch; made by :meth:`ParquetReader.epoch`."""

    def __init__(self, reader: ParquetReader, pipeline: Pipeline) -> None:
        self._reader = reader
        self._channel = pipeline.channel
        self._ready: Iterator[Batch] = iter(())
        # The threads know the pipeline only, so that dropping this object ends them.
        self._end = weakref.finalize(self, pipeline.close)

    @property
    def wait_seconds(self) -> float:
        """Seconds spent waiting for data in this epoch."""
        return self._channel.wait_seconds

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Batch:
        batch = next(self._ready, None)
        if batch is None:
            try:
                chunk = self._channel.get()
            except BaseException:
                self.close()
                raise
            if chunk is None:
                self.close()
                raise StopIteration
            self._ready = self._reader._batches(chunk)
            batch = next(self._ready)
        return batch

    def close(self) -> None:
        """End the threads; no batch follows."""
        self._ready = iter(())
        self._reader._finished(self)
        self._end()
