"""What a tokenizer of transformers pads its fields with."""

from __future__ import annotations

from typing import Any


def pad_values_of(tokenizer: Any, **others: Any) -> dict[str, Any]:
    """Return ``pad_values`` for rows that are a tokenizer's output.

    Args:
        tokenizer: a tokenizer of transformers; its ``model_input_names`` say which fields it returns.
        others: pad values of the fields that the script adds (``labels=-100``).

    Returns:
        ``{field: pad value}`` for `PaddingCollator`: ``input_ids``, ``token_type_ids`` and ``attention_mask`` as far as
        the tokenizer returns them, then ``others``.

    Raises:
        ValueError: the tokenizer has no pad token.

    Example:
        >>> from types import SimpleNamespace
        >>> names = ["input_ids", "attention_mask"]
        >>> tokenizer = SimpleNamespace(pad_token_id=0, pad_token_type_id=0, model_input_names=names)
        >>> pad_values_of(tokenizer, labels=-100)
        {'input_ids': 0, 'attention_mask': 0, 'labels': -100}
    """
    if tokenizer.pad_token_id is None:
        raise ValueError("the tokenizer has no pad token; set tokenizer.pad_token before the collator is made")
    known = {
        "input_ids": tokenizer.pad_token_id,
        "token_type_ids": tokenizer.pad_token_type_id,
        "attention_mask": 0,
    }
    return {**{name: pad for name, pad in known.items() if name in tokenizer.model_input_names}, **others}
