"""Marian with N-gram heads: the paper's encoder-decoder Transformer."""

from typing import ClassVar

from transformers import GenerationMixin, MarianConfig, MarianMTModel

from ..modeling.encoder_decoder import NgramSeq2SeqConfigMixin, NgramSeq2SeqMixin
from .registry import register


class WDRNgramMarianConfig(NgramSeq2SeqConfigMixin, MarianConfig):
    """A [`MarianConfig`] with the N-gram fields: see [`NgramSeq2SeqConfigMixin`]."""

    model_type = "wdr_ngram_marian"


class WDRNgramMarianMTModel(NgramSeq2SeqMixin, MarianMTModel, GenerationMixin):
    """A [`MarianMTModel`] with N-gram heads: see [`NgramSeq2SeqMixin`]."""

    config: WDRNgramMarianConfig
    # For FSDP; stock Marian does not define it.
    _no_split_modules: ClassVar = ["MarianEncoderLayer", "MarianDecoderLayer"]  # pyrefly: ignore[bad-override]

    @property
    def ngram_vocab_size(self) -> int:
        return self.config.decoder_vocab_size or self.config.vocab_size


register(WDRNgramMarianMTModel)
