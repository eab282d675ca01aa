"""A KV manager with the native one's behaviour, written for clarity: copy-on-write, prefix cache, merging.

Tables are replaced by new lists, never changed in place, as those of steps in flight must not change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class _Sequence:
    def __init__(self, salt: bytes, is_publishing: bool) -> None:
        self.salt = salt
        self.is_publishing = is_publishing
        self.blocks: list[int] = []
        self.tokens: list[int] = []  # committed


class FakeKvManager:
    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._free = list(range(num_blocks))
        self._refs = [0] * num_blocks
        self._keys: dict[int, object] = {}  # block -> its key, when published
        self._index: dict[object, int] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._sequences: dict[int, _Sequence] = {}
        self._copies: list[tuple[int, int]] = []
        self.num_copies = 0
        self.fail_open_of: set[int] = set()
        """Token counts of prompts for which open_sequence raises."""

    @property
    def num_free_blocks(self) -> int:
        return len(self._free) + len(self._evictable)

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def open_sequence(self, seq_id: int, token_ids: Sequence[int], salt: bytes, use_cache: bool) -> int:
        if seq_id in self._sequences:
            raise ValueError(f"sequence {seq_id} is already open")
        if len(token_ids) in self.fail_open_of:
            raise RuntimeError("injected failure of open_sequence")
        seq = self._sequences[seq_id] = _Sequence(salt, use_cache)
        if not use_cache:
            return 0
        for i in range((len(token_ids) - 1) // self.block_tokens):
            end = (i + 1) * self.block_tokens
            block = self._index.get((salt, tuple(token_ids[:end])))
            if block is None:
                break
            self._acquire(block)
            seq.blocks = [*seq.blocks, block]
            seq.tokens = list(token_ids[:end])
        return len(seq.tokens)

    def try_grow(self, seq_id: int, num_tokens: int, first_write: int = -1) -> bool:
        seq = self._sequences[seq_id]
        if first_write < 0:
            first_write = len(seq.tokens)
        if first_write < len(seq.tokens):
            raise ValueError("may not write committed positions again")
        if first_write > len(seq.blocks) * self.block_tokens:
            raise ValueError("may not leave a gap")
        if num_tokens <= first_write:
            return True
        num_needed = -(-num_tokens // self.block_tokens)
        begin = first_write // self.block_tokens
        end = min(len(seq.blocks), num_needed)
        shared = [i for i in range(begin, end) if self._refs[seq.blocks[i]] > 1]
        if len(shared) + num_needed - end > self.num_free_blocks:
            return False
        blocks = list(seq.blocks)
        for i in range(begin, end):
            if i in shared:
                own = self._allocate()
                if i * self.block_tokens < first_write:
                    self._copies.append((blocks[i], own))
                    self.num_copies += 1
                self._release(blocks[i])
                blocks[i] = own
            else:
                self._unpublish(blocks[i])
        while len(blocks) < num_needed:
            blocks.append(self._allocate())
        seq.blocks = blocks
        return True

    def fork(self, parent_id: int, child_id: int) -> None:
        if child_id in self._sequences:
            raise ValueError(f"sequence {child_id} is already open")
        parent = self._sequences[parent_id]
        child = self._sequences[child_id] = _Sequence(parent.salt, parent.is_publishing)
        child.blocks = list(parent.blocks)
        child.tokens = list(parent.tokens)
        for block in child.blocks:
            self._acquire(block)

    def commit(self, seq_id: int, token_ids: Sequence[int]) -> None:
        seq = self._sequences[seq_id]
        if len(seq.tokens) + len(token_ids) > len(seq.blocks) * self.block_tokens:
            raise ValueError("commit beyond the room")
        num_sealed = len(seq.tokens) // self.block_tokens
        seq.tokens = [*seq.tokens, *token_ids]
        if not seq.is_publishing:
            return
        for i in range(num_sealed, len(seq.tokens) // self.block_tokens):
            key = (seq.salt, tuple(seq.tokens[: (i + 1) * self.block_tokens]))
            own = seq.blocks[i]
            twin = self._index.get(key)
            if twin is None:
                if own not in self._keys:
                    self._index[key] = own
                    self._keys[own] = key
            elif twin != own:
                self._acquire(twin)
                self._release(own)
                seq.blocks = [*seq.blocks[:i], twin, *seq.blocks[i + 1 :]]

    def close_sequence(self, seq_id: int) -> None:
        for block in reversed(self._sequences.pop(seq_id).blocks):
            self._release(block)

    def block_table(self, seq_id: int) -> list[int]:
        return list(self._sequences[seq_id].blocks)

    def take_copies(self) -> list[tuple[int, int]]:
        copies, self._copies = self._copies, []
        return copies

    def check_consistency(self) -> None:
        refs = [0] * self.num_blocks
        for seq in self._sequences.values():
            for block in seq.blocks:
                refs[block] += 1
        assert refs == self._refs
        held = sum(1 for count in refs if count)
        assert held + self.num_free_blocks == self.num_blocks
        assert not set(self._free) & set(self._evictable)

    def _acquire(self, block: int) -> None:
        self._evictable.pop(block, None)
        self._refs[block] += 1

    def _release(self, block: int) -> None:
        self._refs[block] -= 1
        assert self._refs[block] >= 0
        if self._refs[block] == 0:
            if block in self._keys:
                self._evictable[block] = None
            else:
                self._free.append(block)

    def _unpublish(self, block: int) -> None:
        key = self._keys.pop(block, None)
        if key is not None:
            del self._index[key]

    def _allocate(self) -> int:
        if not self._free:
            block, _ = self._evictable.popitem(last=False)
            self._unpublish(block)
            self._free.append(block)
        block = self._free.pop()
        assert self._refs[block] == 0
        self._refs[block] = 1
        return block
