"""Fingerprints: one short text that says whether two things were made the same way.

A fingerprint is the SHA-256 of the canonical JSON of everything that decides a result (keys sorted, no spaces, UTF-8).
Token batches carry their tokenizer's, checkpoints carry their run's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping


def fingerprint(fields: Mapping[str, object]) -> str:
    """Return the 64 hex digits that stand for `fields` (JSON values only; raises TypeError otherwise)."""
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
