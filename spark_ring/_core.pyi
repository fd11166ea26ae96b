"""The native ring. Bytes, sockets, shared memory, SIMD, threads; no framework, no pickle.

Everything here is thin: :mod:`spark_ring.communicator` is the public face.
"""

from collections.abc import Callable
from typing import Any

class Options:
    """What a communicator needs to know; made from :class:`spark_ring.config.Settings`. Seconds and bytes."""

    transport: str  # "auto" | "shm" | "tcp"
    segment_bytes: int
    fusion_bytes: int
    arena_bytes: int
    autotune: bool
    autotune_log: str
    socket_buffer_bytes: int
    spin_microseconds: int  # -1 decides
    connect_timeout: float
    handshake_timeout: float
    collective_timeout: float
    close_timeout: float
    silence_timeout: float
    stall_warning_seconds: float
    stall_abort_seconds: float
    group: str  # how errors call a sub-group; empty: the whole world
    def __init__(self) -> None: ...

class Listener:
    """A bound, listening TCP socket (IPv4 or IPv6), handed over to the communicator made from it."""

    def __init__(self, address: str = "", port: int = 0) -> None:
        """Bind. ``address=""`` binds every interface. Raises RendezvousError."""
    @property
    def port(self) -> int: ...
    def close(self) -> None: ...

class Peer:
    """Where a rank listens, and on which host it is."""

    address: str  # the one to try first
    port: int
    host_id: str
    others: list[str]  # more addresses of the same rank, tried in turn
    def __init__(self, address: str, port: int, host_id: str, others: list[str] = ...) -> None: ...

class Buffer:
    """A view of somebody's contiguous memory, kept alive while this object or an operation on it lives."""

    @staticmethod
    def from_array(array: Any, writable: bool) -> Buffer:
        """From the buffer protocol. Refuses non-contiguous or (if writable) read-only memory, others."""
    @staticmethod
    def from_dlpack(tensor: Any, writable: bool) -> Buffer:
        """From an object with ``__dlpack__`` on a CPU device (this is how bfloat16 arrives)."""
    @staticmethod
    def from_pointer(address: int, shape: list[int], dtype: str, owner: Any) -> Buffer:
        """From a raw address. The caller vouches for it; ``owner`` is kept alive."""
    @property
    def dtype(self) -> str: ...  # "float32", "bfloat16", …
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...

class Handle:
    """One asynchronous operation."""

    def poll(self) -> bool:
        """True once finished, well or badly; also in a forked child. Never raises."""
    def wait(self, timeout: float = -1.0) -> None:
        """Wait (GIL released, signals honoured), then raise what the operation failed with, if it did.

        A timeout raises CollectiveTimeoutError and leaves the operation pending.
        """
    def result_shapes(self) -> list[list[int]]:
        """After ``wait`` of what gathers rows: how many came from each rank; of a join: ``[[last rank]]``."""
    def take_result(self) -> Any:
        """After ``wait`` of what makes its output: the bytes as a writable buffer-protocol object, once."""
    def received(self) -> tuple[str, tuple[int, ...]]:
        """After ``wait`` of a receive without a buffer, or of a scatter: dtype and shape of what came."""
    def add_done_callback(self, callback: Any) -> None:
        """Call ``callback()`` (with the GIL) once finished, from the thread that drives the ring or at once.

        Inside it nothing of the ring may be waited for or closed; that is refused with ConfigError.
        """

class Communicator:
    """One group of ranks. Thread-safe. Collectives are matched across ranks by name, else by order."""

    def __init__(
        self,
        listener: Listener,
        rank: int,
        peers: list[Peer],
        secret: bytes,
        options: Options,
    ) -> None:
        """Connect to every peer, authenticate both ways, agree on the topology. GIL released."""
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def cross_rank(self) -> int: ...
    @property
    def cross_size(self) -> int: ...
    @property
    def transport(self) -> str: ...  # "self" | "shm" | "tcp" | "shm+tcp"
    def allreduce(
        self,
        inputs: list[Buffer],
        outputs: list[Buffer],
        op: str,
        name: str,
        prescale: float,
        postscale: float,
    ) -> Handle:
        """Reduce one tensor or a group, also in place. op: sum|average|min|max|product|adasum."""
    def broadcast(self, buffer: Buffer, root: int, name: str) -> Handle: ...
    def allgather(self, input: Buffer, name: str, output: Buffer | None = None) -> Handle:
        """First dimensions may differ between ranks; the other dimensions and the dtype may not.

        If all rows together have exactly the output's bytes they go there, and there is no result to take.
        """
    def reducescatter(self, input: Buffer, output: Buffer, op: str, name: str) -> Handle:
        """Split along dimension 0: the first ``d0 % size`` ranks get one row more."""
    def gather(self, input: Buffer, root: int, name: str) -> Handle:
        """As allgather, but only the root receives."""
    def alltoall(self, input: Buffer, splits: list[int], name: str, output: Buffer | None = None) -> Handle:
        """``splits[r]`` rows go to rank r; none: equal parts. Output as in ``allgather``."""
    def scatter(self, input: Buffer | None, root: int, splits: list[int], name: str) -> Handle:
        """``splits[r]`` rows of the root's input go to rank r; the others give ``None`` and no splits."""
    def join(self) -> Handle:
        """Ends when all ranks have joined; until then this rank takes part in what the others do."""
    def barrier(self, name: str) -> Handle: ...
    @property
    def express(self) -> Callable[[Any, Any, str, str | None, float, float, float | None], Any]:
        """allreduce_now by its shortest road, for plain NumPy arrays: (array, out, op, name, prescale,
        postscale, timeout) to ``out``, a new array if that is None, or None if an argument is not plain."""
    def allreduce_now(
        self,
        input: Buffer,
        output: Buffer,
        op: str,
        name: str,
        prescale: float,
        postscale: float,
        timeout: float,
    ) -> None:
        """Allreduce in the calling thread where nothing is pending: no handle, no wake-up. The fast road."""
    def send(self, buffer: Buffer, dest: int, tag: int, timeout: float) -> Handle:
        """Start a message to one rank; a negative timeout is the option ``collective_timeout``."""
    def receive(self, buffer: Buffer | None, source: int, tag: int, timeout: float) -> Handle:
        """Start to receive a message; without a buffer ``take_result`` and ``received`` tell what came."""
    def statistics(self, reset: bool = False) -> dict[str, Any]:
        """Counts since the start: operations, bytes, fused tensors and buckets, seconds, wakeups."""
    def start_timeline(self, path: str) -> None: ...
    def stop_timeline(self) -> None: ...
    def stalled(self) -> list[dict[str, Any]]:
        """What has waited too long now; the fields are those of :class:`spark_ring.stalls.Stall`."""
    def take_stall_reports(self) -> list[dict[str, Any]]:
        """What is to be told of stalls since the last call. The GIL is held and nothing is waited for."""
    def shared_memory(self, bytes: int) -> Any:
        """Zeros in memory that the host's ranks share, as a writable buffer; ``None`` if there is none."""
    def abort(self, reason: str) -> None:
        """Give up: every other rank's pending and later operations raise AbortedError with this reason."""
    def close(self) -> None:
        """Drain, say goodbye, free everything. Idempotent."""

def local_addresses() -> list[tuple[str, str, bool]]:
    """Addresses of interfaces that are up, loopback left out: (address, interface, is it link-local)."""

def handshake_client(fd: int, secret: bytes, timeout: float) -> None:
    """Mutual HMAC-SHA256 over a connected socket, connecting side (for rendezvous in Python)."""

def handshake_server(fd: int, secret: bytes, timeout: float) -> None:
    """Mutual HMAC-SHA256 over a connected socket, accepting side. Raises AuthenticationError."""

def host_id() -> str:
    """The identity of this host: boot id and the identity of its shared-memory file system."""

def local_address_for(remote: str) -> str:
    """The address by which this host reaches ``remote`` (by route, nothing is sent)."""

def refused_reduction(dtype: str, op: str, scaled: bool) -> str:
    """Why an allreduce of this dtype and op is refused; empty when it is defined. The table's only source."""

def simd() -> str:
    """The kernels chosen at run time: "avx512", "avx2", "neon" or "generic"."""

__version__: str
