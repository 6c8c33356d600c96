"""
The base classes of the mixins, for type checkers only: what a mixin can expect of the Transformers class that it is
combined with. When the code runs, they are `object`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    import torch
    from torch import nn
    from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
    from transformers.generation import (
        GenerateBeamDecoderOnlyOutput,
        GenerateBeamEncoderDecoderOutput,
        GenerateDecoderOnlyOutput,
        GenerateEncoderDecoderOutput,
    )

    from .configuration import NgramConfigMixin

    GeneratedTokens = (
        torch.LongTensor
        | GenerateDecoderOnlyOutput
        | GenerateEncoderDecoderOutput
        | GenerateBeamDecoderOnlyOutput
        | GenerateBeamEncoderDecoderOutput
    )

    class BackboneConfig(PreTrainedConfig):
        """The configuration of a language model."""

        vocab_size: int = 0

    class Backbone(PreTrainedModel):
        """A language model with the configuration and the heads of the mixins."""

        config: NgramConfigMixin
        config_class: type[NgramConfigMixin]
        ngram_heads: nn.ModuleList
        draft_token_ids: torch.Tensor

        @property
        def ngram_vocab_size(self) -> int: ...
        def to(self, *args: Any, **kwargs: Any) -> Self: ...
        def get_output_embeddings(self) -> nn.Linear: ...

    class GenerativeBackbone(Backbone, GenerationMixin):
        """
        A language model that generates text. Its methods are declared again, because Transformers declares them for a
        `self` that no model is.
        """

        generation_config: Any

        def generate(
            self,
            inputs: torch.Tensor | None = None,
            generation_config: GenerationConfig | None = None,
            *args: Any,
            ensemble_lambda: float | None = None,
            ensemble_weights: Sequence[float] | None = None,
            use_mtp: bool | None = None,
            draft_vocab_size: int | None = None,
            draft_threshold: float | None = None,
            **kwargs: Any,
        ) -> GeneratedTokens: ...

        def adjust_generation_fn(self, *args: Any, **kwargs: Any) -> None: ...
        def _assisted_decoding(self, *args: Any, **kwargs: Any) -> Any: ...
        def _get_candidate_generator(self, *args: Any, **kwargs: Any) -> Any: ...
        def _get_logits_processor(self, *args: Any, **kwargs: Any) -> Any: ...
        def _prepare_generation_config(self, *args: Any, **kwargs: Any) -> Any: ...
        def _prepare_text_encoder_decoder_kwargs_for_generation(self, *args: Any, **kwargs: Any) -> Any: ...
        def _sample(self, *args: Any, **kwargs: Any) -> Any: ...
        def _validate_generation_mode(self, *args: Any, **kwargs: Any) -> None: ...

else:
    BackboneConfig = Backbone = GenerativeBackbone = object
