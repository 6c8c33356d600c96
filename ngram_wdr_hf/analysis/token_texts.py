"""The text that each token adds to a text."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

# What stands for bytes that are no character.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A character has at most four bytes in UTF-8, and a token has at least one.
MAX_TOKENS_OF_CHARACTER = 4


def token_texts(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """
    Return what each token adds to the text of the tokens before it: `" to"` for `Ġto` and `▁to`, and a special token
    as its name. If several tokens make up a character, the last of them adds it and the others add `""`.
    """
    texts: list[str] = []
    # Where the last tokens with a text begin. Decoded with the next ones, they show whether a space is between them.
    last = 0
    for end in range(1, len(ids) + 1):
        begin = len(texts)
        text = _decode(ids[last:end], tokenizer)
        is_incomplete = text.endswith(REPLACEMENT) and end - begin < MAX_TOKENS_OF_CHARACTER
        if is_incomplete and end < len(ids):
            continue
        before = _decode(ids[last:begin], tokenizer) if last < begin else ""
        texts += [""] * (end - begin - 1) + [text[len(before) :]]
        last = begin
    return texts


def texts_after(before: Sequence[int], ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return what each of the tokens `ids` adds to a text that ends in the tokens `before`."""
    # The last tokens may begin a character.
    before = before[-2 * MAX_TOKENS_OF_CHARACTER :]
    return token_texts([*before, *ids], tokenizer)[len(before) :]


def _decode(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
