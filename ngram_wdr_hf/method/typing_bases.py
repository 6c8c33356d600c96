"""What a mixin can expect of the class that it is combined with: for type checkers, and `object` at run time."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel

    from .configuration import NgramConfigMixin
    from .heads import NgramHeads

    class BackboneConfig(PreTrainedConfig):
        """The configuration of a language model."""

        vocab_size: int = 0

    class Backbone(PreTrainedModel, GenerationMixin):
        """A language model with the configuration and the heads of the mixins."""

        config: NgramConfigMixin
        config_class: type[NgramConfigMixin]
        ngram_heads: NgramHeads
        draft_token_ids: torch.Tensor

        @property
        def ngram_vocab_size(self) -> int: ...

        def get_output_embeddings(self) -> nn.Linear: ...

else:
    BackboneConfig = Backbone = object
