"""The native core of plait."""

from collections.abc import Sequence


def keep_forever(arg: object, /) -> None: ...

def explain_bus_errors() -> None:
    """
    For commands: a bus error (a mapped file became shorter) is explained on stderr before it ends the process.
    """

class NativeError(RuntimeError):
    pass

class GgufFile:
    """
    A checked GGUF file, mapped read-only. Immutable; any thread may read it.
    """

    @staticmethod
    def open(path: bytes) -> GgufFile:
        """Maps and checks the file at an os.fsencode()d path; releases the GIL."""

    @property
    def size(self) -> int: ...

    @property
    def version(self) -> int: ...

    @property
    def alignment(self) -> int: ...

    @property
    def data_offset(self) -> int: ...

    def metadata(self) -> dict[str, object]:
        """A new dict of every key."""

    def tensors(self) -> list[tuple[str, tuple[int, ...], str, int, int, int]]:
        """[(name, shape, type, type_id, offset, num_bytes)] in file order."""

    def tensor_bytes(self, name: str) -> memoryview:
        """
        The tensor's bytes as a read-only view of the file, which it keeps open.
        """

    def file_bytes(self) -> memoryview:
        """All of the file as a read-only view, which keeps it open."""

    def release(self, offset: int, num_bytes: int) -> None:
        """
        Give the memory of a range back; reading it again takes it from the file.
        """

    @property
    def stamp(self) -> tuple[int, int, int, int]:
        """
        (inode, size, modified_ns, changed_ns) of the mapped file as it is now.
        """

def favour_messenger_thread(off_cpu: int = -1) -> bool:
    """
    Let the calling thread have the CPU soon whenever it wakes, see native/parallel/messenger_thread.h. False where the kernel refuses.
    """

class RealtimeMessenger:
    """Favours the calling thread, see native/parallel/messenger_thread.h."""

    def __init__(self, off_cpu: int = -1) -> None: ...

    def check(self) -> None:
        """Whenever the thread wakes: a busy one gives the policy back."""

    @property
    def is_realtime(self) -> bool: ...

class LatencyHistogram:
    """How long something took, by size. One thread notes, any thread reads."""

    def __init__(self) -> None: ...

    def note(self, ns: int) -> None: ...

    @property
    def count(self) -> int: ...

    @property
    def total_s(self) -> float: ...

    @property
    def max_s(self) -> float: ...

    def count_within(self, seconds: float) -> int:
        """Those of whole buckets that end at or below it."""

    def quantile_s(self, q: float) -> float:
        """
        Upper end of the bucket of quantile q (0 to 1); 0 when nothing was noted.
        """

class Doorbell:
    """
    Wakes a sleeping thread. The waiter reads epoch(), looks at its queues, and waits with that epoch if they were empty; others push first and ring second. Native threads may share it.
    """

    def __init__(self) -> None: ...

    def ring(self) -> None:
        """
        Wake the waiter, or make its next wait return at once. Any thread; never blocks.
        """

    def epoch(self) -> int:
        """The count of rings (modulo 2**32) to pass to wait()."""

    def wait(self, seen: int, timeout_s: float | None = None, spin_s: float = 0.0) -> bool:
        """
        Wait until the epoch differs from `seen`: True then, False after `timeout_s` (None: no limit). Releases the GIL. Spins up to `spin_s` before it sleeps. Python's signal handlers run, and may raise.
        """

class ObjectRing:
    """
    A bounded ring of objects: any thread pushes, one thread pops. Objects that are left when the ring dies are released.
    """

    def __init__(self, capacity: int, doorbell: Doorbell | None = None) -> None:
        """
        Capacity is rounded up to a power of two. The doorbell, if any, is rung after every push.
        """

    def try_push(self, object: object | None) -> bool:
        """
        Append an object and ring the doorbell; False, and nothing happens, when the ring is full.
        """

    def try_pop(self, default: object | None = None) -> object:
        """Take the oldest object, or return `default` when the ring is empty."""

    def wait_pop(self, default: object | None = None, timeout_s: float | None = None, spin_s: float = 0.0) -> object:
        """
        Take the oldest object; sleep on the doorbell while there is none, and return `default` after `timeout_s` (None: no limit). Releases the GIL while it waits. Raises NativeError for a ring without a doorbell.
        """

    def pop_all(self, max: int | None = None) -> list[object]:
        """
        Take what is there, oldest first: at most `max` objects, and at most one ring full.
        """

    def __len__(self) -> int:
        """How many objects wait: a snapshot when others push or pop."""

    @property
    def capacity(self) -> int: ...

    @property
    def doorbell(self) -> Doorbell: ...

class SpscObjectRing:
    """
    A bounded ring of objects: one thread pushes, one thread pops. Objects that are left when the ring dies are released.
    """

    def __init__(self, capacity: int, doorbell: Doorbell | None = None) -> None:
        """
        Capacity is rounded up to a power of two. The doorbell, if any, is rung after every push.
        """

    def try_push(self, object: object | None) -> bool:
        """
        Append an object and ring the doorbell; False, and nothing happens, when the ring is full.
        """

    def try_pop(self, default: object | None = None) -> object:
        """Take the oldest object, or return `default` when the ring is empty."""

    def wait_pop(self, default: object | None = None, timeout_s: float | None = None, spin_s: float = 0.0) -> object:
        """
        Take the oldest object; sleep on the doorbell while there is none, and return `default` after `timeout_s` (None: no limit). Releases the GIL while it waits. Raises NativeError for a ring without a doorbell.
        """

    def pop_all(self, max: int | None = None) -> list[object]:
        """
        Take what is there, oldest first: at most `max` objects, and at most one ring full.
        """

    def __len__(self) -> int:
        """How many objects wait: a snapshot when others push or pop."""

    @property
    def capacity(self) -> int: ...

    @property
    def doorbell(self) -> Doorbell: ...

class TraceTotals:
    @property
    def num_events(self) -> int:
        """In the file."""

    @property
    def num_dropped(self) -> int:
        """That did not fit into the memory or the file."""

    @property
    def error(self) -> str:
        """Of writing the file; "" when all is well."""

def start_trace(path: str, max_file_bytes: int = 1073741824) -> None:
    """
    Record what threads do from now on, into a new file for Perfetto. Raises NativeError when the file cannot be written or a trace runs already.
    """

def stop_trace() -> TraceTotals:
    """End the file. Without a trace: nothing happens. Releases the GIL."""

def trace_totals() -> TraceTotals:
    """Of the trace that runs, or of the last one."""

def trace_is_on() -> bool: ...

class TraceSpan:
    """
    A context manager that records an event of its thread. One thread at a time, not within itself. While no trace runs it does next to nothing.
    """

    def __init__(self, name: str, category: str, args: Sequence[str] = []) -> None:
        """
        args: names of up to three numbers. Raises NativeError for text that is not plain ASCII.
        """

    def __enter__(self) -> TraceSpan: ...

    def __exit__(self, *args: object) -> None: ...

    def set(self, a: int, b: int = 0, c: int = 0) -> None:
        """The numbers, once they are known."""

    def mark(self) -> None:
        """Record a moment instead."""

class BlockTable:
    """An immutable block table of one sequence."""

    def __len__(self) -> int: ...

    def __getitem__(self, idx: int) -> int: ...

    def to_list(self) -> list[int]: ...

class BlockSnapshot:
    """
    Blocks with complete content and their versions. Immutable; holds no references.
    """

    @property
    def blocks(self) -> list[int]: ...

    @property
    def versions(self) -> list[int]: ...

    @property
    def num_tokens(self) -> int:
        """Positions of the sequence that they hold, from 0."""

class KvManager:
    """
    Which block holds which position of which sequence, and the prefix cache. One thread calls everything. Wrong use raises NativeError ("invalid_argument", ...).
    """

    def __init__(self, num_blocks: int, block_tokens: int, model_id: bytes) -> None: ...

    def open_sequence(self, seq_id: int, token_ids: Sequence[int], salt: bytes = ..., use_cache: bool = True) -> int:
        """
        Open a sequence for a prompt and return how many of its first tokens are cached: full blocks, never the whole prompt. They count as committed. `salt` separates tenants. Without use_cache the sequence neither takes from the cache nor publishes to it. Releases the GIL for more than 4096 tokens.
        """

    def try_grow(self, seq_id: int, num_tokens: int, first_write: int = -1) -> bool:
        """
        Make room for positions 0..num_tokens and allow writing of first_write..num_tokens (default: from the first position not committed). False, with nothing changed, when blocks are short even after eviction. Shared blocks in the written range are replaced by own ones: see take_copies. Pass first_write when a step is planned while the one before it is in flight.
        """

    def fork(self, parent_id: int, child_id: int) -> None:
        """
        Open a second sequence that shares all blocks of the first, those in flight included.
        """

    def commit(self, seq_id: int, token_ids: Sequence[int]) -> None:
        """
        The next positions are computed and hold these tokens; blocks that get full are published. May replace an own block by an equal published one. Releases the GIL for more than 4096 tokens.
        """

    def close_sequence(self, seq_id: int) -> None:
        """Give all blocks back; published ones stay in the cache until evicted."""

    def block_table(self, seq_id: int) -> list[int]:
        """The sequence's blocks, as a new list."""

    def snapshot(self, seq_id: int) -> BlockTable:
        """The sequence's blocks, immutable and without copying."""

    def capture(self, seq_id: int) -> BlockSnapshot:
        """
        The sequence's blocks whose content is complete, with versions: full ones, and the last one unless positions after the committed ones are granted.
        """

    def take_copies(self) -> list[tuple[int, int]]:
        """
        Block copies (src, dst) due since the last call, to be done in this order before the next step writes.
        """

    def reset_cache(self) -> None:
        """
        Forget all cached content, pinned too. Open sequences keep running and no longer publish.
        """

    def pin_prefix(self, token_ids: Sequence[int], salt: bytes = ...) -> tuple[int, int]:
        """
        Keep the published full blocks at the start of token_ids from eviction: (handle, number of tokens kept). Raises NativeError ("invalid_argument", ...) when none is published or more than max_pinned_blocks would be kept. Releases the GIL for more than 4096 tokens.
        """

    def unpin(self, handle: int) -> None:
        """Let a pinned prefix go."""

    def has_sequence(self, seq_id: int) -> bool: ...

    def num_committed(self, seq_id: int) -> int: ...

    def num_refs(self, block: int) -> int: ...

    def block_version(self, block: int) -> int:
        """Raised by every write grant. Any thread."""

    def counters(self) -> dict[str, int]:
        """Totals since construction, by name."""

    def check_consistency(self) -> None:
        """Recount everything; raises on a contradiction."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_tokens(self) -> int: ...

    @property
    def num_sequences(self) -> int: ...

    @property
    def num_free_blocks(self) -> int:
        """Free and evictable blocks."""

    @property
    def num_pinned_blocks(self) -> int: ...

    @property
    def max_pinned_blocks(self) -> int:
        """
        How many blocks pins may keep; the others are always left to sequences.
        """

    @property
    def num_cached_blocks(self) -> int:
        """Evictable blocks: kept for a later prompt."""

def choose_isa() -> tuple[str, str]:
    """
    (name, reason) of the instruction set to use; PLAIT_FORCE_ISA forces one. Raises NativeError when it cannot run.
    """

def supported_isas() -> list[str]:
    """Those that can run here; "scalar" is the first, the widest the last."""

def kernel_quantize(isa: str, x: bytes, num_tokens: int, cols: int) -> bytes:
    """The 8-bit layout of x [num_tokens][cols]."""

def kernel_matmul(isa: str, type: str, weights: bytes, rows: int, x: bytes, cols: int, row_range: tuple[int, int], token_range: tuple[int, int]) -> bytes:
    """
    Packs file bytes [rows][cols] and multiplies a range of them: [tokens][rows].
    """

def kernel_dequantize(type: str, weights: bytes) -> bytes:
    """File bytes as float32."""

def kernel_rms_norm(isa: str, x: bytes, weight: bytes, eps: float) -> bytes: ...

def kernel_add(isa: str, x: bytes, delta: bytes) -> bytes: ...

def kernel_rope(isa: str, x: bytes, cos: bytes, sin: bytes, style: str) -> bytes: ...

def kernel_gated_act(isa: str, gate: bytes, up: bytes, activation: str) -> bytes: ...

def kernel_attention(isa: str, layout: KvLayout, q: bytes, k: bytes, v: bytes, block_table: Sequence[int], group: int, window: int, scale: float, softcap: float, is_split: bool) -> bytes:
    """
    Writes k, v [context][kv heads][head_dim] to the blocks and attends with the queries of the last positions, [queries][heads][head_dim].
    """

class Weights:
    """Packed weights of one model; filled at load, then read-only."""

    def __init__(self, num_bytes: int) -> None: ...

    @staticmethod
    def from_packed(packed: PackedFile) -> Weights:
        """
        To be filled by place_matrix and place_vector, in the order of the file.
        """

    @staticmethod
    def matrix_bytes(file: GgufFile, tensor: str, is_searched: bool = False) -> int:
        """Bytes that the matrix takes in packed memory."""

    @staticmethod
    def vector_bytes(file: GgufFile, tensor: str) -> int:
        """Bytes that the vector takes in a packed file."""

    def add_matrix(self, file: GgufFile, tensor: str, num_threads: int, is_searched: bool = False) -> int:
        """
        Pack a tensor and return its matrix id; ``is_searched``: so that the largest of its products can be found without reading all of it, where its type allows that. Releases the GIL.
        """

    def add_vector(self, file: GgufFile, tensor: str) -> int:
        """Copy a one-dimensional tensor as float32 and return its vector id."""

    def place_matrix(self, file: GgufFile, tensor: str, is_searched: bool = False) -> int:
        """The next matrix of the packed file; returns its id."""

    def place_vector(self, file: GgufFile, tensor: str) -> int:
        """The next vector of the packed file; returns its id."""

    def vector_values(self, arg: int, /) -> list[float]: ...

    def is_searched(self, matrix: str) -> bool:
        """The largest of its products can be found without reading all of it."""

    @property
    def used_bytes(self) -> int: ...

def packed_layout_name(isa: str) -> str:
    """The layout in which weights are packed for an instruction set."""

class PackedFile:
    """A checked packed file, mapped read-only and locked against removal."""

    @staticmethod
    def open(folder: int, name: str, key: str, num_bytes: int, num_threads: int, share: bool | None = None) -> PackedFile | None:
        """
        None: there is no such file. Raises NativeError: "invalid_file" when it is damaged or not to be trusted. ``share`` None: the file's own pages, unless only a copy has huge pages. Releases the GIL.
        """

    @property
    def is_shared(self) -> bool:
        """The memory is the file's own pages."""

    @property
    def num_huge_bytes(self) -> int:
        """How much of the memory is in huge pages now."""

class PackedWriter:
    """Writes a packed file; without publish() nothing is left of it."""

    @staticmethod
    def try_create(folder: int, name: str, key: str, num_bytes: int) -> PackedWriter | None:
        """
        None: another process writes this file now. Sets disk space aside; releases the GIL.
        """

    def add_matrix(self, file: GgufFile, tensor: str, num_threads: int, is_searched: bool = False) -> None:
        """Pack the next tensor. Releases the GIL."""

    def add_vector(self, file: GgufFile, tensor: str) -> None:
        """Write the next vector as float32."""

    def publish(self) -> None:
        """Give the file its name once it is on the disk. Releases the GIL."""

class KvLayout:
    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, block_tokens: int, dtype: str = 'f16') -> None:
        """dtype: f16 or q8."""

    @property
    def block_bytes(self) -> int: ...

    @property
    def block_tokens(self) -> int: ...

class Plan:
    """Buffers and fused operations, in the order in which a step runs them."""

    def __init__(self, hidden: int, vocab: int, kv: KvLayout) -> None: ...

    def add_buffer(self, name: str, cols: int, is_acts: bool, has_q8: bool = False, has_f32: bool = False) -> int: ...

    def add_rope(self, style: str, inverse_freqs: Sequence[float]) -> int: ...

    def add_embed(self, table: int, scale: float, out: int) -> None: ...

    def add_add_norm(self, residual: int, delta: int, post_norm: int, norm: int, eps: float, out: int) -> None: ...

    def add_qkv(self, in_: int, weights: tuple[int, int, int], num_heads: int, norms: tuple[int, int], eps: float, rope: int, layer: int, out_q: int) -> None: ...

    def add_attention(self, q: int, layer: int, num_heads: int, window: int, scale: float, softcap: float, out: int) -> None: ...

    def add_matmul(self, in_: int, weight: int, out: int) -> None: ...

    def add_gated(self, in_: int, gate: int, up: int, activation: str, out: int) -> None: ...

    def add_logits(self, residual: int, delta: int, post_norm: int, norm: int, eps: float, head: int, softcap: float) -> None: ...

    def verify(self, weights: Weights) -> None:
        """
        Raise NativeError when an operation does not fit its buffers or weights.
        """

    def arena_bytes(self, max_tokens: int) -> int:
        """Bytes that steps of so many tokens write to."""

    def describe(self, weights: Weights) -> str:
        """One line per operation."""

class SlotStart:
    def __init__(self, slot: int, prompt_ids: Sequence[int], output_ids: Sequence[int] = [], temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0, repetition_penalty: float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, seed: int = 0, num_logprobs: int = -1, min_tokens: int = 0, stop_token_ids: Sequence[int] = [], logit_bias: Sequence[tuple[int, float]] = []) -> None: ...

    @property
    def slot(self) -> int: ...

    @property
    def prompt_ids(self) -> list[int]: ...

    @property
    def output_ids(self) -> list[int]: ...

    @property
    def temperature(self) -> float: ...

    @property
    def top_p(self) -> float: ...

    @property
    def top_k(self) -> int: ...

    @property
    def min_p(self) -> float: ...

    @property
    def repetition_penalty(self) -> float: ...

    @property
    def presence_penalty(self) -> float: ...

    @property
    def frequency_penalty(self) -> float: ...

    @property
    def seed(self) -> int: ...

    @property
    def num_logprobs(self) -> int: ...

    @property
    def min_tokens(self) -> int: ...

    @property
    def stop_token_ids(self) -> list[int]: ...

    @property
    def logit_bias(self) -> list[tuple[int, float]]: ...

class StepInput:
    """One step, see native/plan/step.h."""

    def __init__(self) -> None: ...

    @property
    def step_id(self) -> int: ...

    @step_id.setter
    def step_id(self, arg: int, /) -> None: ...

    @property
    def work_since_ns(self) -> int: ...

    @work_since_ns.setter
    def work_since_ns(self, arg: int, /) -> None: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_sequences(self) -> int: ...

    @property
    def is_unwanted(self) -> bool: ...

    @property
    def token_ids(self) -> list[int]: ...

    @token_ids.setter
    def token_ids(self, arg: Sequence[int], /) -> None: ...

    @property
    def seq_slots(self) -> list[int]: ...

    @seq_slots.setter
    def seq_slots(self, arg: Sequence[int], /) -> None: ...

    @property
    def query_starts(self) -> list[int]: ...

    @query_starts.setter
    def query_starts(self, arg: Sequence[int], /) -> None: ...

    @property
    def context_lens(self) -> list[int]: ...

    @context_lens.setter
    def context_lens(self, arg: Sequence[int], /) -> None: ...

    @property
    def block_tables(self) -> list[list[int]]: ...

    @block_tables.setter
    def block_tables(self, arg: Sequence[Sequence[int]], /) -> None: ...

    @property
    def sample_rows(self) -> list[int]: ...

    @sample_rows.setter
    def sample_rows(self, arg: Sequence[int], /) -> None: ...

    @property
    def sample_slots(self) -> list[int]: ...

    @sample_slots.setter
    def sample_slots(self, arg: Sequence[int], /) -> None: ...

    @property
    def copies(self) -> list[tuple[int, int]]: ...

    @copies.setter
    def copies(self, arg: Sequence[tuple[int, int]], /) -> None: ...

    @property
    def slot_starts(self) -> list[SlotStart]: ...

    @slot_starts.setter
    def slot_starts(self, arg: Sequence[SlotStart], /) -> None: ...

    @property
    def scores(self) -> list[tuple[int, int, int]]: ...

    @scores.setter
    def scores(self, arg: Sequence[tuple[int, int, int]], /) -> None: ...

class StepResult:
    """What one step gave; error is empty when it ran."""

    def __init__(self, step_id: int, error: str = '', tokens: Sequence[int] = [], logprobs: Sequence[float] = [], ranks: Sequence[int] = [], tops: Sequence[Sequence[tuple[int, float]]] = [], scores: Sequence[tuple[float, int, Sequence[tuple[int, float]]]] = [], begin_ns: int = 0, end_ns: int = 0, was_skipped: bool = False) -> None:
        """
        For executors other than ComputeThread. One entry per sample in each column.
        """

    @property
    def step_id(self) -> int: ...

    @property
    def error(self) -> str: ...

    @property
    def slots(self) -> list[int]: ...

    @property
    def tokens(self) -> list[int]: ...

    @property
    def logprobs(self) -> list[float]: ...

    @property
    def ranks(self) -> list[int]: ...

    @property
    def tops(self) -> list[list[tuple[int, float]]]: ...

    @property
    def scores(self) -> list[tuple[float, int, list[tuple[int, float]]]]: ...

    @property
    def was_skipped(self) -> bool: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def begin_ns(self) -> int: ...

    @property
    def end_ns(self) -> int: ...

    @property
    def forward_ns(self) -> int: ...

class KvStorage:
    """The bytes of the KV cache."""

    def __init__(self, layout: KvLayout, num_blocks: int) -> None: ...

    @property
    def num_blocks(self) -> int: ...

    def prefault(self, first_block: int, num_blocks: int, num_threads: int) -> None:
        """
        Take the memory of these blocks now, not when they are first written; nothing runs yet. Releases the GIL.
        """

def evaluate_logits(plan: Plan, weights: Weights, isa: str, token_ids: Sequence[int], chunk_tokens: int, num_threads: int) -> bytearray:
    """
    Logits after every token as the bytes of float32 [num_tokens][vocab]. Releases the GIL.
    """

class KvTransfer:
    """What became of one save or fetch."""

    @property
    def ticket(self) -> int: ...

    @property
    def is_save(self) -> bool: ...

    @property
    def ok(self) -> bool: ...

    @property
    def is_file(self) -> bool:
        """The ticket lies in the file, not in memory."""

    @property
    def error(self) -> str:
        """Why not ok: "cancelled" after drop, or what to log."""

    @property
    def num_blocks(self) -> int:
        """Blocks copied."""

    @property
    def num_bytes(self) -> int:
        """Bytes copied."""

    @property
    def begin_ns(self) -> int:
        """When the work began, on the clock of time.monotonic_ns."""

    @property
    def end_ns(self) -> int: ...

class KvSwap:
    """
    Saves KV blocks to memory or a file and brings them back, on threads of its own. One thread calls everything but counters(). Nothing waits. The caller keeps its references to blocks of a save, and holds the blocks of a fetch alone, until the completion is popped. Wrong use raises NativeError ("invalid_argument", ...).
    """

    def __init__(self, storage: KvStorage, kv: KvManager, done_bell: Doorbell, ram_bytes: int = 0, dir: str = '', file_bytes: int = 0) -> None:
        """
        Up to ram_bytes are kept in memory, then up to file_bytes (0: no bound) in a file without a name in `dir` ("": no file). Raises NativeError ("system", ...) when no file can be made there.
        """

    def try_save(self, ticket: int, snapshot: BlockSnapshot) -> bool:
        """
        Begin to save what KvManager.capture gave. False, with nothing changed, when there is no room or too much is under way: compute it again instead.
        """

    def try_fetch(self, ticket: int, blocks: Sequence[int]) -> bool:
        """
        Begin to bring saved block i back into blocks[i]; -1 skips it. Only after every step has come back that was submitted before the blocks were granted. False when too much is under way: ask again.
        """

    def drop(self, ticket: int) -> None:
        """
        Forget a ticket. What is under way is cancelled and still completes, not ok; until then the number stays taken.
        """

    def pop_transfers(self) -> list[KvTransfer]:
        """What has completed since the last call, in the order of completion."""

    def is_saved(self, ticket: int) -> bool:
        """The ticket is kept and no transfer of it is under way."""

    def has_room(self, num_blocks: int) -> bool:
        """try_save would take so many blocks now."""

    def counters(self) -> dict[str, int]:
        """Totals since construction and what is kept now, by name. Any thread."""

    @property
    def last_error(self) -> str:
        """Why a transfer failed, lately; "": none has. Any thread."""

    @property
    def num_transfers(self) -> int:
        """Saves and fetches whose completion is not popped."""

class SchedulerLimits:
    """The scheduler's fixed limits."""

    def __init__(self, *, num_blocks: int, block_tokens: int, max_batch_size: int = 64, max_batch_tokens: int = 512, prefill_chunk_tokens: int = 512, batch_timeout_s: float = 0.0, enable_prefix_cache: bool = True, target_step_s: float = 0.0, kv_block_bytes: int = 0, vocab_size: int = 0, eos_token_ids: Sequence[int] = [], tenant_weights: Sequence[tuple[bytes, float]] = []) -> None:
        """
        See native/scheduler/limits.h. Raises NativeError ("invalid_argument") with the name of what is out of range.
        """

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_tokens(self) -> int: ...

    @property
    def max_batch_size(self) -> int: ...

    @property
    def max_batch_tokens(self) -> int: ...

    @property
    def prefill_chunk_tokens(self) -> int: ...

    @property
    def batch_timeout_s(self) -> float: ...

    @property
    def enable_prefix_cache(self) -> bool: ...

    @property
    def target_step_s(self) -> float: ...

    @property
    def kv_block_bytes(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> list[int]: ...

    @property
    def tenant_weights(self) -> list[tuple[bytes, float]]:
        """Tenants without one have 1."""

    @property
    def num_slots(self) -> int:
        """Sequences that may run."""

class Request:
    """
    A request for the scheduler. Whoever adds it takes its content, once; what is shown here stays.
    """

    def __init__(self, request_id: int, prompt_ids: Sequence[int], max_tokens: int, produced_ids: Sequence[int] = [], n: int = 1, ignore_eos: bool = False, num_prompt_logprobs: int = -1, tenant: bytes = ..., priority: int = 0, arrived_ns: int = 0, deadline_ns: int | None = None, may_hold: bool = True, is_timed: bool = True) -> None:
        """
        num_prompt_logprobs: -1 for none. Times are those of time.monotonic_ns().
        """

    def set_sampling(self, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0, repetition_penalty: float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, seed: int = 0, num_logprobs: int = -1, min_tokens: int = 0, stop_token_ids: Sequence[int] = [], logit_bias: Sequence[tuple[int, float]] = []) -> None:
        """
        seed: of choice 0. num_logprobs: -1 for none. Raises NativeError when the content was taken.
        """

    @property
    def request_id(self) -> int: ...

    @property
    def n(self) -> int: ...

    @property
    def num_prompt(self) -> int:
        """Prompt tokens."""

    @property
    def arrived_ns(self) -> int:
        """time.monotonic_ns() of the submission."""

    @property
    def is_timed(self) -> bool:
        """Whether its way to acceptance counts."""

class OutputBatch:
    """Outputs of a scheduler, in order."""

    def __len__(self) -> int: ...

    def take(self) -> list[tuple[object, ...]]:
        """
        Give the outputs away, each as a tuple in the order of plait.types.TokenOutput's fields; logprobs are tuples in the order of TokenLogprob's.
        """

class SchedulerStats:
    """
    Totals of a scheduler, see native/scheduler/stats.h. Any thread may read.
    """

    @property
    def requests_total(self) -> int: ...

    @property
    def requests_dequeued_total(self) -> int: ...

    @property
    def dequeued_prompt_tokens_total(self) -> int: ...

    @property
    def dequeued_choices_total(self) -> int: ...

    @property
    def requests_finished_total(self) -> int: ...

    @property
    def choices_aborted_total(self) -> int: ...

    @property
    def choices_failed_total(self) -> int: ...

    @property
    def prompt_tokens_total(self) -> int: ...

    @property
    def cached_tokens_total(self) -> int: ...

    @property
    def generated_tokens_total(self) -> int: ...

    @property
    def prefill_tokens_total(self) -> int: ...

    @property
    def dropped_tokens_total(self) -> int: ...

    @property
    def skipped_steps_total(self) -> int: ...

    @property
    def preemptions_total(self) -> int: ...

    @property
    def saved_sequences_total(self) -> int: ...

    @property
    def fetched_sequences_total(self) -> int: ...

    @property
    def fetched_tokens_total(self) -> int: ...

    @property
    def failed_transfers_total(self) -> int: ...

class PlannedStep:
    """Whose rows a step holds, by (request_id, index)."""

    @property
    def step_id(self) -> int: ...

    @property
    def num_prefill_tokens(self) -> int: ...

    @property
    def rows(self) -> list[tuple[int, int]]:
        """By entry of StepInput.seq_slots."""

    @property
    def forked(self) -> list[tuple[int, int]]:
        """They sample from the row of another choice."""

    @property
    def starts(self) -> list[tuple[int, int]]:
        """By entry of StepInput.slot_starts."""

class SwapRequest:
    """What the scheduler asks of whoever moves KV blocks."""

    @property
    def kind(self) -> str:
        """save, fetch or drop."""

    @property
    def ticket(self) -> int: ...

    @property
    def blocks(self) -> list[int]:
        """save: what to read; fetch: where saved block i goes, -1 for nowhere."""

    @property
    def num_tokens(self) -> int: ...

class Scheduler:
    """
    Which tokens of which sequences run in the next step. One thread calls everything; stats and the num_ gauges may be read from any.
    """

    def __init__(self, limits: SchedulerLimits, kv: KvManager) -> None: ...

    def add(self, request: Request) -> None:
        """
        Queue a request and take its content. Raises NativeError, and takes nothing, for one that cannot run or whose id is in use.
        """

    def refuse(self, request: Request, reason: str, error: str | None = None) -> None:
        """Instead of add: one last output for each choice of the request."""

    def abort(self, request_id: int) -> None:
        """Unknown and ended ones are ignored."""

    def end(self, request_id: int, reason: str, error: str | None = None) -> None:
        """End what has not ended of a request."""

    def end_all(self, reason: str, error: str | None = None) -> None: ...

    def schedule(self, now_ns: int) -> StepInput | None:
        """
        The next step, or None when nothing can run before a result, an arrival or next_wakeup_ns(), or when it is too early to plan: while a step runs, until next_wakeup_ns(). Releases the GIL when a prompt of more than 4096 tokens is to be admitted.
        """

    def finish_step(self, result: StepResult) -> None:
        """
        Take in the result of the oldest planned step; raises NativeError for any other.
        """

    def fail_step(self, step_id: int, error: str) -> None:
        """The step planned last could not be submitted: its sequences end."""

    def take_outputs(self) -> OutputBatch:
        """Outputs since the last call."""

    def next_wakeup_ns(self, can_plan: bool = True) -> int | None:
        """
        When expire() or, if ``can_plan``, schedule() should be called again though nothing happened, or None. After schedule().
        """

    def expire(self, now_ns: int) -> None:
        """
        End requests whose deadline has passed. schedule() does so, too, but is not called while steps enough are planned.
        """

    def take_swap_requests(self) -> list[SwapRequest]:
        """
        What is to be done with KV blocks since the last call, in this order. See run_swap_transfers.
        """

    def finish_transfer(self, ticket: int, is_ok: bool, num_bytes: int = 0, seconds: float = 0.0) -> None:
        """
        The answer to a save or fetch: one for each, also when it was not begun, and after a drop.
        """

    def planned_step(self, last: bool = True) -> PlannedStep | None:
        """
        The newest step that is planned and not finished (or the oldest), None when there is none.
        """

    def check_idle(self) -> None:
        """Raises NativeError unless nothing is left of any request. For tests."""

    @property
    def limits(self) -> SchedulerLimits: ...

    @property
    def stats(self) -> SchedulerStats: ...

    @property
    def has_work(self) -> bool:
        """A request has not ended."""

    @property
    def has_transfers(self) -> bool:
        """A save or fetch has not been answered."""

    @property
    def num_requests(self) -> int: ...

    @property
    def num_waiting(self) -> int:
        """Sequences without slot and blocks."""

    @property
    def num_running(self) -> int:
        """Sequences that hold slot and blocks."""

    @property
    def num_free_blocks(self) -> int:
        """Free and evictable blocks."""

    @property
    def prefill_token_s(self) -> float:
        """Measured seconds per prompt token, 0 before the first measurement."""

    @property
    def hold_until_s(self) -> float:
        """
        time.monotonic() when the last wait for a fuller batch ends at the latest; 0 before the first.
        """

class ComputeThread:
    """Runs steps on a thread of its own, with a team of compute threads."""

    def __init__(self, plan: Plan, weights: Weights, kv: KvStorage, results_bell: Doorbell, isa: str, num_threads: int, cpus: Sequence[int], max_tokens: int, max_slots: int, parallelism: str = 'tensor') -> None:
        """
        results_bell is rung for each result. parallelism: tensor, or pipeline, which needs 2 threads or more. Raises NativeError.
        """

    def submit(self, step: StepInput) -> bool:
        """
        Move the step into the ring. False: the ring is full and the step is unchanged. Raises NativeError for a bad step, and after stop.
        """

    def pop_results(self) -> list[StepResult]:
        """Those that are ready, in the order of their steps; never waits."""

    @property
    def num_steps(self) -> int: ...

    @property
    def busy_ns(self) -> int:
        """Nanoseconds in steps."""

    @property
    def last_step_end_ns(self) -> int:
        """CLOCK_MONOTONIC in nanoseconds; 0 before the first step."""

    @property
    def gap_ns(self) -> int:
        """Nanoseconds between steps while there was something to compute."""

    @property
    def max_gap_ns(self) -> int:
        """The longest of these gaps."""

    @property
    def num_queued_steps(self) -> int:
        """Submitted and not begun."""

    @property
    def num_queued_results(self) -> int:
        """Ready and not popped."""

    @property
    def cpu(self) -> int:
        """The CPU that the thread is pinned to, -1: none."""

    def stop(self) -> None:
        """Finish the submitted steps and join. Idempotent. Releases the GIL."""

class InlineExecutor:
    """
    Runs steps on the thread that calls run_next, which is member 0 of the team.
    """

    def __init__(self, plan: Plan, weights: Weights, kv: KvStorage, isa: str, num_threads: int, cpus: Sequence[int], max_tokens: int, max_slots: int, parallelism: str = 'tensor') -> None:
        """
        As ComputeThread; the caller of run_next is not pinned: cpus[0] is for whoever wants to.
        """

    def submit(self, step: StepInput) -> bool:
        """
        Move the step into the ring. False: the ring is full and the step is unchanged. Raises NativeError for a bad step, and after stop.
        """

    def pop_results(self) -> list[StepResult]:
        """Those that are ready, in the order of their steps; never waits."""

    @property
    def num_steps(self) -> int: ...

    @property
    def busy_ns(self) -> int:
        """Nanoseconds in steps."""

    @property
    def last_step_end_ns(self) -> int:
        """CLOCK_MONOTONIC in nanoseconds; 0 before the first step."""

    @property
    def gap_ns(self) -> int:
        """Nanoseconds between steps while there was something to compute."""

    @property
    def max_gap_ns(self) -> int:
        """The longest of these gaps."""

    @property
    def num_queued_steps(self) -> int:
        """Submitted and not begun."""

    @property
    def num_queued_results(self) -> int:
        """Ready and not popped."""

    def run_next(self) -> bool:
        """
        Run the oldest submitted step on this thread. False: there is none. Releases the GIL. One thread at a time.
        """

    def stop(self) -> None:
        """
        Take no more steps and run the submitted ones. Idempotent. Releases the GIL. Not beside run_next.
        """

def run_swap_transfers(scheduler: Scheduler, swap: KvSwap) -> bool:
    """
    Hand answers of `swap` to the scheduler, then what it asks for to `swap`; whether it was told something, so that it may have more to plan. Call it before schedule() and again after, until it is False.
    """

class EngineEnded:
    """The last item that an EngineLoop gives away."""

    @property
    def error(self) -> str | None:
        """None: it was told to stop."""

class EngineLoop:
    """
    The main thread of an engine without Python, see native/runtime/engine_loop.h. After start() nobody else may use its scheduler, but for stats and gauges.
    """

    def __init__(self, scheduler: Scheduler, compute: ComputeThread, main_bell: Doorbell, outputs_bell: Doorbell, num_messages: int = 1024, num_outputs: int = 256, max_steps_in_flight: int = 2, swap: KvSwap | None = None) -> None:
        """
        main_bell: the one that `compute` and `swap` ring. outputs_bell: rung after each item of pop_outputs().
        """

    def start(self) -> None:
        """Start the thread, once."""

    def push(self, request: Request) -> bool:
        """
        Any thread. Takes the request's content. False: the ring is full and the request is unchanged.
        """

    def push_abort(self, request_id: int) -> bool:
        """Any thread. False: the ring is full."""

    def push_stop(self) -> None:
        """
        Any thread, any time: end what runs as aborted, wait for steps in flight, stop the compute thread.
        """

    def pop_outputs(self) -> list[OutputBatch | EngineEnded]:
        """
        One thread. What is there, in order; nothing comes after an EngineEnded.
        """

    def abandon_outputs(self) -> None:
        """
        Any thread: nobody takes outputs any more, the loop need not wait for room.
        """

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; whether the thread is gone. Releases the GIL."""

    @property
    def num_messages(self) -> int:
        """Requests and aborts that wait in the ring."""

    @property
    def num_outputs(self) -> int:
        """Batches that wait in the ring."""

    @property
    def accepts(self) -> LatencyHistogram:
        """From a request's arrival until the loop has taken it in."""

    @property
    def steps_total(self) -> int: ...

    @property
    def failed_steps_total(self) -> int: ...

    @property
    def step_seconds_total(self) -> float: ...

    @property
    def forward_seconds_total(self) -> float: ...

    @property
    def num_steps_in_flight(self) -> int: ...

    @property
    def last_progress_s(self) -> float:
        """time.monotonic() of the last end of a step, 0 before the first."""

def time_messages(kind: str, num_producers: int, message_bytes: int, num_messages: int, capacity: int, repeats: int, cpus: Sequence[int]) -> Timing:
    """
    Check, then time messages between native threads; kind: "spsc", "spsc-batch", "mpsc", "channel" or "mutex"; 8 or 64 bytes. Seconds of one message, by run. Releases the GIL.
    """

def time_round_trips(kind: str, num_rounds: int, cpus: Sequence[int]) -> Timing:
    """
    Seconds of each round trip between two native threads, over two queues. Releases the GIL.
    """

def time_line_transfers(num_rounds: int, repeats: int, cpus: Sequence[int]) -> list[float]:
    """
    Seconds that a cache line takes from one CPU to the other, by run. Releases the GIL.
    """

class Metronome:
    """Rings a doorbell now and then from a native thread."""

    def __init__(self, bell: Doorbell, period_s: float) -> None: ...

    @property
    def rung_at_ns(self) -> int:
        """time.monotonic_ns() just before the last ring."""

    def stop(self) -> None:
        """Wait for the thread to end, a period at most. Releases the GIL."""

class Timing:
    @property
    def difference(self) -> str:
        """
        How the kernel differs from the scalar one, "" when it does not; then nothing was timed.
        """

    @property
    def seconds(self) -> list[float]:
        """Of one unit of work, by run."""

class KernelRig:
    """
    Kernels and a team of threads to time them with; for one thread at a time.
    """

    def __init__(self, isa: str, num_threads: int, cpus: Sequence[int]) -> None: ...

    def read_rates(self, num_bytes: int, is_alone: bool, repeats: int) -> list[float]:
        """
        Bytes per second that one or all threads read from memory, by run. Releases the GIL.
        """

    def mac_rates(self, unit: str, is_alone: bool, repeats: int) -> list[float]:
        """
        Multiply-adds per second of one or all threads in registers, by run; unit: "f32", "int8" or "int6". Releases the GIL.
        """

class MatmulTimer:
    """One matrix kernel at one shape."""

    def __init__(self, rig: KernelRig, file: GgufFile, tensors: Sequence[str], cold_bytes: int, form: str = 'plain') -> None:
        """
        Packs tensors of one type and shape, again and again until they take cold_bytes. form: "plain"; "apart", as those that are searched, all of it; "coarse", the part of it that a search reads. Releases the GIL.
        """

    @property
    def matrix_bytes(self) -> int:
        """That a product of one matrix reads."""

    @property
    def num_copies(self) -> int: ...

    def run(self, num_tokens: int, repeats: int) -> Timing:
        """
        Check, then time products of a whole matrix with num_tokens tokens. Releases the GIL.
        """

class AttentionTimer:
    """The attention kernels at one shape."""

    def __init__(self, rig: KernelRig, layout: KvLayout, group: int, context: int, num_queries: int, window: int, scale: float, softcap: float, cold_bytes: int) -> None:
        """
        Fills layers of sequences of `context` positions until they take cold_bytes. Releases the GIL.
        """

    @property
    def macs(self) -> float:
        """Of one layer of one sequence."""

    @property
    def kv_bytes(self) -> float:
        """That its queries see."""

    def run(self, repeats: int) -> Timing:
        """
        Check, then time all heads of one layer of one sequence. Releases the GIL.
        """
