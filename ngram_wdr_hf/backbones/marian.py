"""Marian with N-gram heads: the paper's encoder-decoder Transformer."""

from typing import ClassVar

from transformers import GenerationMixin, MarianConfig, MarianMTModel

from ..modeling.encoder_decoder import NgramSeq2SeqConfigMixin, NgramSeq2SeqMixin


class WDRNgramMarianConfig(NgramSeq2SeqConfigMixin, MarianConfig):
    __doc__ = f"""A [`MarianConfig`] with the N-gram fields.\n{NgramSeq2SeqConfigMixin.__doc__}"""

    model_type = "wdr_ngram_marian"


class WDRNgramMarianMTModel(NgramSeq2SeqMixin, MarianMTModel, GenerationMixin):
    __doc__ = f"""A [`MarianMTModel`] with N-gram heads.\n{NgramSeq2SeqMixin.__doc__}"""

    config: WDRNgramMarianConfig
    # For FSDP; stock Marian does not define it.
    _no_split_modules: ClassVar = ["MarianEncoderLayer", "MarianDecoderLayer"]  # pyrefly: ignore[bad-override]

    @property
    def ngram_vocab_size(self) -> int:
        return self.config.decoder_vocab_size or self.config.vocab_size
