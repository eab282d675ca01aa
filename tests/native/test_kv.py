"""KvManager against a model that really stores what each cell of each block holds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from plait import _native

NUM_BLOCKS = 10
BLOCK_TOKENS = 3


def make_kv(num_blocks: int = NUM_BLOCKS, block_tokens: int = BLOCK_TOKENS) -> Any:
    return _native.KvManager(num_blocks, block_tokens, b"model")


def run_prompt(kv: Any, seq_id: int, tokens: list[int], salt: bytes = b"") -> int:
    num_cached: int = kv.open_sequence(seq_id, tokens, salt)
    assert kv.try_grow(seq_id, len(tokens))
    kv.commit(seq_id, tokens[num_cached:])
    return num_cached


@dataclass
class Sequence:
    salt: bytes
    tokens: list[int]  # the prompt, then what was generated
    use_cache: bool
    num_committed: int
    num_written: int  # >= num_committed: written by a step that is not committed yet
    num_granted: int  # >= num_written: a step that was given up may have been longer


@dataclass
class Pin:
    salt: bytes
    tokens: list[int]
    blocks: list[int]


@dataclass
class Capture:
    """What a reader in another thread is given, and the cells that it may then count on."""

    blocks: list[int]
    versions: list[int]
    cells: list[tuple[bytes, tuple[int, ...]]]


@dataclass
class Oracle:
    """What the bytes would be. A cell holds (salt, all tokens up to and including its position)."""

    cells: dict[tuple[int, int], tuple[bytes, tuple[int, ...]]] = field(default_factory=dict)
    published: dict[tuple[bytes, tuple[int, ...]], int] = field(default_factory=dict)
    ever_published: set[tuple[bytes, tuple[int, ...]]] = field(default_factory=set)

    def write(self, block: int, offset: int, value: tuple[bytes, tuple[int, ...]]) -> None:
        self.cells[block, offset] = value
        self.published = {key: b for key, b in self.published.items() if b != block}


class KvMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.kv = make_kv()
        self.oracle = Oracle()
        self.sequences: dict[int, Sequence] = {}
        self.pins: dict[int, Pin] = {}
        self.captures: list[Capture] = []
        self.next_id = 0
        self.num_copies = 0

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.sequences)), label="sequence")

    def cell_value(self, sequence: Sequence, position: int) -> tuple[bytes, tuple[int, ...]]:
        return sequence.salt, tuple(sequence.tokens[: position + 1])

    def do_copies(self) -> None:
        for src, dst in self.kv.take_copies():
            assert src != dst
            self.num_copies += 1
            for i in range(BLOCK_TOKENS):
                if (src, i) in self.oracle.cells:
                    self.oracle.cells[dst, i] = self.oracle.cells[src, i]
                else:
                    self.oracle.cells.pop((dst, i), None)

    def expected_blocks(self, tokens: list[int], salt: bytes) -> list[int]:
        """The published blocks at the start of ``tokens``."""
        blocks: list[int] = []
        for n in range(len(tokens) // BLOCK_TOKENS):
            block = self.oracle.published.get((salt, tuple(tokens[: (n + 1) * BLOCK_TOKENS])))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_expected_hits(self, tokens: list[int], salt: bytes) -> int:
        return len(self.expected_blocks(tokens[:-1], salt)) * BLOCK_TOKENS

    def num_pinned(self) -> int:
        return len({block for pin in self.pins.values() for block in pin.blocks})

    @rule(
        tokens=st.lists(st.integers(0, 1), max_size=14),
        salt=st.sampled_from([b"", b"a", b"b"]),
        use_cache=st.sampled_from([True, True, True, False]),
    )
    def open_sequence(self, tokens: list[int], salt: bytes, use_cache: bool) -> None:
        seq_id, self.next_id = self.next_id, self.next_id + 1
        num_cached = self.kv.open_sequence(seq_id, tokens, salt, use_cache)
        assert num_cached % BLOCK_TOKENS == 0
        assert num_cached < max(len(tokens), 1)
        assert num_cached == (self.num_expected_hits(tokens, salt) if use_cache else 0)
        self.sequences[seq_id] = Sequence(salt, list(tokens), use_cache, num_cached, num_cached, num_cached)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), num_new=st.integers(1, 9), is_in_flight=st.booleans())
    def run_step(self, data: st.DataObject, num_new: int, is_in_flight: bool) -> None:
        """Grow, copy, write. Tokens beyond those known are made up here."""
        seq_id = self.pick(data)
        sequence = self.sequences[seq_id]
        first = sequence.num_written if is_in_flight else sequence.num_committed
        self.step(data, seq_id, first + num_new, is_in_flight)

    def step(self, data: st.DataObject, seq_id: int, end: int, is_in_flight: bool) -> None:
        sequence = self.sequences[seq_id]
        first = sequence.num_written if is_in_flight else sequence.num_committed
        before = self.kv.block_table(seq_id)
        num_free = self.kv.num_free_blocks
        shared = [
            block
            for i, block in enumerate(before)
            if (i + 1) * BLOCK_TOKENS > first and i * BLOCK_TOKENS < end and self.kv.num_refs(block) > 1
        ]
        num_needed = max(-(-end // BLOCK_TOKENS) - len(before), 0) + len(shared)
        versions = [self.kv.block_version(block) for block in range(NUM_BLOCKS)]
        snapshot = self.kv.snapshot(seq_id)

        is_grown = self.kv.try_grow(seq_id, end, first) if is_in_flight else self.kv.try_grow(seq_id, end)
        assert is_grown == (num_needed <= num_free)
        assert snapshot.to_list() == before
        after = self.kv.block_table(seq_id)
        if not is_grown:
            assert after == before
            assert self.kv.num_free_blocks == num_free
            return
        assert len(after) * BLOCK_TOKENS >= end
        replaced = [i for i, block in enumerate(before) if after[i] != block]
        assert [before[i] for i in replaced] == shared
        self.do_copies()
        if sequence.num_written > first:  # the step in flight is given up: other tokens may take its place
            del sequence.tokens[first:]
        while len(sequence.tokens) < end:
            sequence.tokens.append(data.draw(st.integers(0, 1), label="token"))
        for position in range(first, end):
            block = after[position // BLOCK_TOKENS]
            assert self.kv.num_refs(block) == 1
            assert self.kv.block_version(block) > versions[block]
            self.oracle.write(block, position % BLOCK_TOKENS, self.cell_value(sequence, position))
        sequence.num_written = end
        sequence.num_granted = max(sequence.num_granted, end)

    @precondition(lambda self: any(s.num_written > s.num_committed for s in self.sequences.values()))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        ready = [i for i, s in self.sequences.items() if s.num_written > s.num_committed]
        seq_id = data.draw(st.sampled_from(ready), label="sequence")
        sequence = self.sequences[seq_id]
        self.commit_tokens(
            seq_id, data.draw(st.integers(1, sequence.num_written - sequence.num_committed), label="num")
        )

    @rule(
        data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=7, max_size=14), is_closed=st.booleans()
    )
    def run_prompt(self, data: st.DataObject, tokens: list[int], is_closed: bool) -> None:
        """Fills the cache, and then the pool, quicker than single steps would."""
        seq_id = self.next_id
        self.open_sequence(tokens=tokens, salt=b"", use_cache=True)
        self.step(data, seq_id, len(tokens), is_in_flight=False)
        sequence = self.sequences[seq_id]
        if sequence.num_written > sequence.num_committed:
            self.commit_tokens(seq_id, sequence.num_written - sequence.num_committed)
        if is_closed:
            self.close(seq_id)

    def commit_tokens(self, seq_id: int, num: int) -> None:
        sequence = self.sequences[seq_id]
        end = sequence.num_committed + num
        self.kv.commit(seq_id, sequence.tokens[sequence.num_committed : end])
        sequence.num_committed = end
        assert self.kv.num_committed(seq_id) == end
        if sequence.use_cache:
            table = self.kv.block_table(seq_id)
            for n in range((end - num) // BLOCK_TOKENS, end // BLOCK_TOKENS):
                key = sequence.salt, tuple(sequence.tokens[: (n + 1) * BLOCK_TOKENS])
                assert self.oracle.published.setdefault(key, table[n]) == table[n]
                self.oracle.ever_published.add(key)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        seq_id = self.pick(data)
        child_id, self.next_id = self.next_id, self.next_id + 1
        self.kv.fork(seq_id, child_id)
        parent = self.sequences[seq_id]
        self.sequences[child_id] = Sequence(
            parent.salt,
            list(parent.tokens),
            parent.use_cache,
            parent.num_committed,
            parent.num_written,
            parent.num_granted,
        )
        assert self.kv.block_table(child_id) == self.kv.block_table(seq_id)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def close_sequence(self, data: st.DataObject) -> None:
        self.close(self.pick(data))

    def close(self, seq_id: int) -> None:
        self.kv.close_sequence(seq_id)
        del self.sequences[seq_id]

    @rule(data=st.data(), num_more=st.integers(0, BLOCK_TOKENS))
    def pin_prefix(self, data: st.DataObject, num_more: int) -> None:
        keys = [(b"", (0, 1, 0)), *sorted(self.oracle.ever_published)]
        salt, key_tokens = data.draw(st.sampled_from(keys), label="prefix")
        tokens = [*key_tokens, *[1] * num_more]
        expected = self.expected_blocks(tokens, salt)
        pinned = {block for pin in self.pins.values() for block in pin.blocks}
        if expected and len(pinned | set(expected)) <= self.kv.max_pinned_blocks:
            handle, num_tokens = self.kv.pin_prefix(tokens, salt)
            assert handle not in self.pins
            assert num_tokens == len(expected) * BLOCK_TOKENS
            self.pins[handle] = Pin(salt, tokens[:num_tokens], expected)
        else:
            with pytest.raises(_native.NativeError, match="cannot pin"):
                self.kv.pin_prefix(tokens, salt)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.pins)), label="pin")
        self.kv.unpin(handle)
        del self.pins[handle]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def capture(self, data: st.DataObject) -> None:
        seq_id = self.pick(data)
        sequence = self.sequences[seq_id]
        captured = self.kv.capture(seq_id)
        num_tokens = sequence.num_committed
        if sequence.num_granted > num_tokens:
            num_tokens -= num_tokens % BLOCK_TOKENS
        assert captured.num_tokens == num_tokens
        assert captured.blocks == self.kv.block_table(seq_id)[: -(-num_tokens // BLOCK_TOKENS)]
        assert captured.versions == [self.kv.block_version(block) for block in captured.blocks]
        cells = [self.cell_value(sequence, position) for position in range(num_tokens)]
        self.captures = [*self.captures[-4:], Capture(captured.blocks, captured.versions, cells)]

    @rule()
    def reset_cache(self) -> None:
        self.kv.reset_cache()
        self.oracle.published.clear()
        for pin in self.pins.values():
            pin.tokens, pin.blocks = [], []
        for sequence in self.sequences.values():
            sequence.use_cache = False
        assert self.kv.num_cached_blocks == 0

    @invariant()
    def references_add_up(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check_consistency()
        num_refs = dict.fromkeys(range(NUM_BLOCKS), 0)
        for seq_id in self.sequences:
            table = self.kv.block_table(seq_id)
            assert len(set(table)) == len(table)
            for block in table:
                num_refs[block] += 1
        for pin in self.pins.values():
            for block in pin.blocks:
                num_refs[block] += 1
        assert self.kv.num_pinned_blocks == self.num_pinned() <= self.kv.max_pinned_blocks
        assert num_refs == {block: self.kv.num_refs(block) for block in range(NUM_BLOCKS)}
        assert self.kv.num_free_blocks == sum(n == 0 for n in num_refs.values())
        assert self.kv.num_sequences == len(self.sequences)
        assert self.kv.counters()["num_copies"] == self.num_copies

    @invariant()
    def every_sequence_reads_its_own_content(self) -> None:
        for seq_id, sequence in getattr(self, "sequences", {}).items():
            table = self.kv.block_table(seq_id)
            for position in range(sequence.num_written):
                cell = self.oracle.cells[table[position // BLOCK_TOKENS], position % BLOCK_TOKENS]
                assert cell == self.cell_value(sequence, position)

    @invariant()
    def pinned_blocks_keep_their_content(self) -> None:
        for pin in getattr(self, "pins", {}).values():
            for position in range(len(pin.tokens)):
                cell = self.oracle.cells[pin.blocks[position // BLOCK_TOKENS], position % BLOCK_TOKENS]
                assert cell == (pin.salt, tuple(pin.tokens[: position + 1]))

    @invariant()
    def unchanged_versions_mean_unchanged_content(self) -> None:
        for captured in getattr(self, "captures", []):
            if captured.versions != [self.kv.block_version(block) for block in captured.blocks]:
                continue
            for position, value in enumerate(captured.cells):
                block = captured.blocks[position // BLOCK_TOKENS]
                assert self.oracle.cells[block, position % BLOCK_TOKENS] == value

    def teardown(self) -> None:
        if not hasattr(self, "kv"):
            return
        for handle in self.pins:
            self.kv.unpin(handle)
        for salt, key_tokens in self.oracle.ever_published:
            self.open_sequence(tokens=[*key_tokens, 0], salt=salt, use_cache=True)
            self.close(self.next_id - 1)
        for seq_id in list(self.sequences):
            self.close(seq_id)
        self.kv.check_consistency()
        assert self.kv.num_free_blocks == NUM_BLOCKS


KvMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestKvMachine = KvMachine.TestCase


def test_cached_tokens_never_cover_the_whole_prompt() -> None:
    kv = make_kv()
    assert run_prompt(kv, 0, [1, 2, 3, 4, 5, 6]) == 0
    assert run_prompt(kv, 1, [1, 2, 3, 4, 5, 6]) == 3
    assert run_prompt(kv, 2, [1, 2, 3, 4, 5, 6, 7]) == 6
    assert kv.counters()["num_hit_tokens"] == 9


def test_tenants_and_models_do_not_share() -> None:
    kv = make_kv()
    tokens = [1, 2, 3, 4]
    assert run_prompt(kv, 0, tokens, b"one") == 0
    assert run_prompt(kv, 1, tokens, b"two") == 0
    assert run_prompt(kv, 2, tokens, b"one") == 3


@pytest.mark.parametrize("num_children", [1, 2, 4])
def test_copy_on_write_once_per_writer_but_the_last(num_children: int) -> None:
    kv = make_kv(num_blocks=32)
    run_prompt(kv, 0, [1, 2, 3, 4])
    for child in range(1, num_children + 1):
        kv.fork(0, child)
    shared = kv.block_table(0)[1]
    for num_tokens in (5, 6):
        for seq_id in range(num_children + 1):
            assert kv.try_grow(seq_id, num_tokens)
            kv.commit(seq_id, [seq_id])
    copies = kv.take_copies()
    assert [src for src, _ in copies] == [shared] * num_children
    assert len({dst for _, dst in copies}) == num_children
    assert kv.take_copies() == []


def test_preempted_sequence_resumes_from_the_cache() -> None:
    kv = make_kv()
    run_prompt(kv, 0, [1, 2, 3, 4, 5])
    assert kv.try_grow(0, 6)
    kv.commit(0, [6])
    kv.close_sequence(0)
    assert kv.num_cached_blocks == 2
    assert kv.open_sequence(0, [1, 2, 3, 4, 5, 6, 7]) == 6


def test_a_hit_makes_a_prefix_the_newest() -> None:
    kv = make_kv(num_blocks=4)
    for seq_id, token in enumerate([1, 2, 3]):
        run_prompt(kv, seq_id, [token] * 4)
        kv.close_sequence(seq_id)
    assert kv.open_sequence(9, [1] * 4) == 3  # the oldest is asked for
    kv.close_sequence(9)
    run_prompt(kv, 10, [4] * 4)  # one free block, one evicted
    kv.close_sequence(10)
    cached = [kv.open_sequence(20 + token, [token] * 4) for token in [1, 2, 3, 4]]
    assert cached == [3, 0, 3, 3]


def test_counters_tell_of_versions() -> None:
    kv = make_kv()
    run_prompt(kv, 0, [1, 2, 3, 4])
    assert kv.counters()["num_versions"] == 2
    assert kv.try_grow(0, 5)
    assert kv.counters()["num_versions"] == 3
    assert sum(kv.block_version(block) for block in range(NUM_BLOCKS)) == 3


def test_snapshot_is_immutable() -> None:
    kv = make_kv()
    run_prompt(kv, 0, [1, 2])
    snapshot = kv.snapshot(0)
    blocks = kv.block_table(0)
    assert kv.try_grow(0, 7)
    assert snapshot.to_list() == blocks
    assert len(snapshot) == 1
    assert snapshot[0] == snapshot[-1] == blocks[0]
    with pytest.raises(IndexError):
        snapshot[1]
    assert list(kv.snapshot(0)) == kv.block_table(0)
    kv.close_sequence(0)
    assert snapshot.to_list() == blocks


@pytest.mark.parametrize(
    "call",
    [
        lambda kv: kv.close_sequence(9),
        lambda kv: kv.try_grow(9, 1),
        lambda kv: kv.commit(9, [1]),
        lambda kv: kv.commit(0, [1]),
        lambda kv: kv.fork(9, 1),
        lambda kv: kv.open_sequence(0, [1]),
        lambda kv: kv.block_table(9),
        lambda kv: kv.snapshot(9),
        lambda kv: kv.num_refs(NUM_BLOCKS),
        lambda kv: kv.block_version(-1),
        lambda kv: kv.capture(9),
        lambda kv: kv.pin_prefix([1, 2]),
        lambda kv: kv.unpin(1),
        lambda kv: _native.KvManager(0, 16, b""),
        lambda kv: _native.KvManager(4, 0, b""),
    ],
)
def test_wrong_use_raises(call: Any) -> None:
    kv = make_kv()
    kv.open_sequence(0, [1, 2])
    with pytest.raises(_native.NativeError) as caught:
        call(kv)
    assert caught.value.args[0] == "invalid_argument"
    kv.check_consistency()
    assert kv.num_sequences == 1


def test_long_prompt_is_quick() -> None:
    kv = make_kv(num_blocks=4096, block_tokens=16)
    tokens = [i * 31 % 50_000 for i in range(6000)]
    run_prompt(kv, 0, tokens)
    times_s = []
    for seq_id in range(1, 21):
        begin = time.perf_counter()
        assert kv.open_sequence(seq_id, tokens) == 5984
        times_s.append(time.perf_counter() - begin)
        kv.close_sequence(seq_id)
    assert min(times_s) < 1e-3
