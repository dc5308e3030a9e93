"""Splits: messages that point at a range of a file instead of carrying text."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.schemas.errors import BadRecord, Reason

FileFormat = Literal["txt", "jsonl", "csv", "tsv", "parquet", "arrow"]


class Split(BaseModel):
    """A range of one file: decoded bytes [start, end) of line formats, row groups [start, end) of Parquet.

    `etag` is the store's mark of the file's content: a file that changed under its split is a dead letter.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(min_length=1)
    format: FileFormat
    start: int = Field(ge=0)
    end: int = Field(ge=0)
    etag: str = ""

    def encode(self) -> bytes:
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, data: bytes) -> Split:
        """Raises BadRecord: what names a file from outside is checked before anything is opened."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise BadRecord(Reason.INVALID_SPLIT, f"{where}: {first['msg']}") from error
