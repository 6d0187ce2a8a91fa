"""The one reader of ``SPEEDRUNTIME_DISABLE``, the switch that turns single features off at run time."""

from __future__ import annotations

import os
import warnings

VARIABLE = "SPEEDRUNTIME_DISABLE"
WORDS = ("compile", "float8", "bucket", "lookahead", "label_only")


def is_disabled(word: str) -> bool:
    """Tell whether the comma list in ``SPEEDRUNTIME_DISABLE`` holds a word.

    Args:
        word: one of ``WORDS``.

    Returns:
        True where the user has switched that feature off.

    Example:
        >>> import os
        >>> os.environ["SPEEDRUNTIME_DISABLE"] = "lookahead, compile"
        >>> is_disabled("compile"), is_disabled("bucket")
        (True, False)
        >>> del os.environ["SPEEDRUNTIME_DISABLE"]
    """
    assert word in WORDS, word
    asked = {part.strip() for part in os.environ.get(VARIABLE, "").split(",") if part.strip()}
    unknown = sorted(asked.difference(WORDS))
    if unknown:
        warnings.warn(
            f"{VARIABLE} holds {', '.join(map(repr, unknown))}, which switches nothing off; known words: "
            f"{', '.join(WORDS)}",
            stacklevel=3,
        )
    return word in asked
