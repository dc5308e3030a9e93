"""headrace: live text into a distributed PaddlePaddle trainer, exactly once.

`TokenStream` is all that one imports to feed a training loop of one's own; everything else is the command line's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.trainer.token_stream import TokenStreamBase as TokenStream

__version__ = "0.1.0"
__all__ = ["TokenStream", "__version__"]


def __getattr__(name: str) -> Any:
    """`TokenStream` is a Paddle dataset, and Paddle takes seconds to import: it is made when it is first asked for."""
    if name == "TokenStream":
        from headrace.trainer.token_stream import token_stream_class

        return token_stream_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
