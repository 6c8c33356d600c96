"""
The Tensorized Transformer (Ma et al. 2019) as a causal language model. Each token attends to all pairs of tokens
before it (multi-linear attention).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    Cache,
    DynamicCache,
    GenerationMixin,
    GradientCheckpointingLayer,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from ..decoding.cache_history import tokens_in
from ..method.configuration import NgramConfigMixin, check_integer
from ..method.documents import allowed_by
from ..method.logits import keep_positions
from ..modeling.causal import NgramMixin
from .registry import register


class TensorizedTransformerConfig(PreTrainedConfig):
    r"""
    Configuration of a Tensorized Transformer, by default that for Penn Treebank: the paper's number of layers, and the
    original model's sizes (Ma et al. 2019).

    Args:
        vocab_size (`int`, *optional*, defaults to 10000): The vocabulary size.
        max_position_embeddings (`int`, *optional*, defaults to 32):
            The maximum length of a document. The output layer of attention has weights for every pair of positions.
        hidden_size (`int`, *optional*, defaults to 256): The model's width.
        num_hidden_layers (`int`, *optional*, defaults to 3): The number of layers.
        attention_rank (`int`, *optional*, defaults to 40): The width of queries, keys and values: the core's rank.
        num_attention_blocks (`int`, *optional*, defaults to 1):
            The number of blocks of the block-term decomposition, whose cores are averaged.
        intermediate_size (`int`, *optional*, defaults to 2100): The width inside the feed-forward layers.
        dropout (`float`, *optional*, defaults to 0.3): Dropout of the embeddings, in and after every layer.
        initializer_range (`float`, *optional*, defaults to 0.02): The standard deviation of initial weights.
        layer_norm_eps (`float`, *optional*, defaults to 1e-5): The ε of layer normalization.
        use_cache (`bool`, *optional*, defaults to `True`): Whether to return the keys and values.
    """

    model_type = "tensorized_transformer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    # For the sizes of caches: keys and values have one head.
    num_attention_heads: ClassVar[int] = 1

    vocab_size: int = 10_000
    max_position_embeddings: int = 32
    hidden_size: int = 256
    num_hidden_layers: int = 3
    attention_rank: int = 40
    num_attention_blocks: int = 1
    intermediate_size: int = 2100
    dropout: float = 0.3
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        sizes = ("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "attention_rank")
        for name in (*sizes, "num_attention_blocks", "intermediate_size"):
            check_integer(name, getattr(self, name))
        if self.hidden_size % 2:
            raise ValueError(f"`hidden_size` must be even, got {self.hidden_size}.")

    @property
    def head_dim(self) -> int:
        return self.attention_rank


@dataclass
class AttentionGrid:
    r"""
    Visibility and distances between the T new tokens and the K columns, those of the cache and then the new ones. All
    layers share it.
    """

    # Whether token t attends to column j, and how far j is before t (0 if it is after): `(batch_size or 1, T, K)`.
    is_visible: torch.Tensor
    distances: torch.Tensor
    # The one-hot position of each column in its document, `(batch_size or 1, K, max_position_embeddings)`; `None` if
    # column j has position j in every row.
    slots: torch.Tensor | None

    @classmethod
    def make(
        cls,
        hidden_states: torch.Tensor,
        num_positions: int,
        num_columns: int,
        past_length: int | torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
    ) -> "AttentionGrid":
        """
        Make the grid for new tokens after `past_length` cached ones, with `num_columns` columns in total. Of
        `hidden_states`, only shape, dtype and device are used.
        """
        length, device = hidden_states.shape[1], hidden_states.device
        columns = torch.arange(length, device=device) + past_length
        is_visible = causal_visibility(columns, num_columns)[None]
        is_token = torch.ones(1, num_columns, dtype=torch.bool, device=device)
        if attention_mask is not None:
            num_masked = attention_mask.shape[-1]
            if not torch.compiler.is_compiling() and num_masked < past_length + length:
                num_tokens = f"{int(past_length) + length} tokens, those in the cache included"
                raise ValueError(f"`attention_mask` has {num_masked} columns for {num_tokens}.")
            allowed = _read_mask(attention_mask, num_columns)
            is_visible = is_visible & allowed
            is_token = allowed.any(1)
        # Padding is not counted.
        positions = is_token.cumsum(1) - 1
        if position_ids is not None:
            # Difference between the given position of each new token and its count.
            offsets = position_ids - positions[:, columns]
            # A token at position p attends to the p tokens before it; earlier ones are of another document.
            is_visible = is_visible & (positions[:, None] + offsets[:, :, None] >= 0)
            first = is_token[:, columns].int().argmax(1, keepdim=True).expand(len(offsets), 1)
            # In the cache, only the document of the first new token is visible.
            positions = positions + offsets.gather(1, first)
            positions = positions.index_copy(1, columns, position_ids.expand(len(positions), -1))
        new_positions = positions[:, columns].masked_fill(~is_token[:, columns], 0)
        if not torch.compiler.is_compiling() and int(new_positions.max()) >= num_positions:
            length = int(new_positions.max()) + 1
            raise ValueError(f"`max_position_embeddings` is {num_positions}, but the text has {length} positions.")
        distances = (new_positions[:, :, None] - positions[:, None]).clamp(0, num_positions - 1)
        straight = torch.arange(num_columns, device=device).expand_as(positions)
        is_straight = not torch.compiler.is_compiling() and torch.equal(positions, straight)
        is_straight = is_straight and num_columns <= num_positions
        slots = None if is_straight else F.one_hot(positions.clamp(0, num_positions - 1), num_positions)
        return cls(is_visible, distances, slots if slots is None else slots.to(hidden_states.dtype))


def causal_visibility(columns: torch.Tensor, num_columns: int) -> torch.Tensor:
    """Return the causal mask `(T, K)` of the tokens in `columns`, `(T,)`: each sees itself and the columns before."""
    return columns[:, None] >= torch.arange(num_columns, device=columns.device)


def _read_mask(attention_mask: torch.Tensor, num_columns: int) -> torch.Tensor:
    """Return a 2D or 4D mask as booleans of shape `(batch_size, 1 or T, num_columns)`, `False` beyond its end."""
    allowed = attention_mask.bool()[:, None] if attention_mask.ndim == 2 else allowed_by(attention_mask[:, 0])
    return F.pad(allowed, (0, num_columns - allowed.shape[-1]))


class TensorizedAttention(nn.Module):
    """
    Multi-linear attention without softmax, `A[i, j, k] = sum_r g_r Q[i, r] K[j, r] V[k, r]` for `j <= i` and `k <= i`,
    with the core g averaged over the blocks of the decomposition. K is the sum of a token's and a distance's key, as
    in Transformer-XL. All pairs `(j, k)` are projected to the model's width.
    """

    def __init__(self, config: TensorizedTransformerConfig, layer_idx: int):
        super().__init__()
        self.layer_idx = layer_idx
        self.num_positions = config.max_position_embeddings
        self.qkv = nn.Linear(config.hidden_size, 3 * config.attention_rank, bias=False)
        self.distance = nn.Linear(config.hidden_size, config.attention_rank, bias=False)
        self.cores = nn.Parameter(torch.empty(config.num_attention_blocks, config.attention_rank))
        self.pairs = nn.Linear(self.num_positions**2, config.hidden_size, bias=False)

    def forward(
        self,
        hidden_states: torch.Tensor,
        distance_embeddings: torch.Tensor,
        query_biases: tuple[torch.Tensor, torch.Tensor],  # for token keys and for distance keys
        grid: AttentionGrid,
        past_key_values: Cache | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output for T new tokens, `(batch_size, T, d)`, and A, `(batch_size, T, K, K)`."""
        queries, keys, values = self.qkv(hidden_states).chunk(3, dim=-1)
        if past_key_values is not None:
            keys, values = past_key_values.update(keys[:, None], values[:, None], self.layer_idx)
            keys, values = keys[:, 0], values[:, 0]
        # A is linear in the core, so averaging the cores averages the blocks.
        core = self.cores.mean(0)
        token_queries, distance_queries = (((queries + bias) * core)[:, :, None] for bias in query_biases)
        distances = self.distance(distance_embeddings)[grid.distances]
        pairs = token_queries * keys[:, None] + distance_queries * distances  # (batch_size, T, K, rank)
        attention = torch.matmul(pairs.flatten(1, 2), values.transpose(1, 2)).unflatten(1, pairs.shape[1:3])
        # Filled rather than multiplied by 0, as padding may give inf or NaN.
        is_visible = grid.is_visible[..., :, None] & grid.is_visible[..., None, :]
        attention = attention.masked_fill(~is_visible, 0.0)
        return self._project(attention, grid.slots), attention

    def _project(self, attention: torch.Tensor, slots: torch.Tensor | None) -> torch.Tensor:
        """Project the attention to all pairs to the model's width. A pair's weights are those of its two positions."""
        weight = self.pairs.weight
        if slots is not None:
            # Invisible columns are zero, so a slot sums at most one nonzero column.
            attention = torch.einsum("btjk,bjp,bkq->btpq", attention, *[slots.expand(len(attention), -1, -1)] * 2)
        num_columns = attention.shape[-1]
        if num_columns < self.num_positions:
            weight = weight.unflatten(1, (self.num_positions, -1))[:, :num_columns, :num_columns].flatten(1)
        return F.linear(attention.flatten(2), weight)


class TensorizedLayer(GradientCheckpointingLayer):
    """Attention and a feed-forward network, each with a residual connection and layer normalization after it."""

    def __init__(self, config: TensorizedTransformerConfig, layer_idx: int):
        super().__init__()
        self.attention = TensorizedAttention(config, layer_idx)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.fc_in = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc_out = nn.Linear(config.intermediate_size, config.hidden_size)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_states: torch.Tensor, *args, **kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        output, attention = self.attention(hidden_states, *args, **kwargs)
        hidden_states = self.attention_norm(hidden_states + self.dropout(output))
        output = self.fc_out(self.dropout(F.relu(self.fc_in(hidden_states))))
        return self.feed_forward_norm(hidden_states + self.dropout(output)), attention


class TensorizedTransformerPreTrainedModel(PreTrainedModel):
    config: TensorizedTransformerConfig
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["TensorizedLayer"]  # pyrefly: ignore[bad-override]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]  # pyrefly: ignore[bad-override]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, TensorizedAttention):
            initialization.copy_(module.cores, torch.randn(module.cores.shape).softmax(dim=-1))
        elif isinstance(module, TensorizedTransformerModel):
            for bias in (module.word_bias, module.distance_bias):
                initialization.normal_(bias, std=self.config.initializer_range)


class TensorizedTransformerModel(TensorizedTransformerPreTrainedModel):
    """The Tensorized Transformer without a head on top. Its attentions have the shape `(batch_size, T, K, K)`."""

    def __init__(self, config: TensorizedTransformerConfig):
        super().__init__(config)
        self.embeddings: nn.Module = nn.Embedding(config.vocab_size, config.hidden_size)
        # Biases of the queries, for token keys and for distance keys, shared by all layers.
        self.word_bias = nn.Parameter(torch.empty(config.attention_rank))
        self.distance_bias = nn.Parameter(torch.empty(config.attention_rank))
        self.layers = nn.ModuleList(TensorizedLayer(config, i) for i in range(config.num_hidden_layers))
        self.dropout = nn.Dropout(config.dropout)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings = value

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Pass either `input_ids` or `inputs_embeds`.")
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if self.gradient_checkpointing and self.training:
            # A recomputed layer would write to the cache twice.
            use_cache, past_key_values = False, None
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if inputs_embeds is None:
            inputs_embeds = self.embeddings(input_ids)
        length = inputs_embeds.shape[1]
        past_length = tokens_in(past_key_values)
        # A static cache also has empty columns.
        num_columns = length if past_key_values is None else past_key_values.get_mask_sizes(length, 0)[0]
        num_positions = self.config.max_position_embeddings
        grid = AttentionGrid.make(inputs_embeds, num_positions, num_columns, past_length, attention_mask, position_ids)
        hidden_states = self.dropout(inputs_embeds * self.config.hidden_size**0.5)
        distances = self.dropout(self._distance_embeddings(hidden_states))
        biases = (self.word_bias, self.distance_bias)
        keeps_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        keeps_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        states, attentions = [hidden_states], []
        for layer in self.layers:
            hidden_states, attention = layer(hidden_states, distances, biases, grid, past_key_values)
            states.append(hidden_states)
            # Not kept by default: these are the largest tensors.
            attentions += [attention] if keeps_attentions else []
        return BaseModelOutputWithPast(
            last_hidden_state=self.dropout(hidden_states),
            past_key_values=past_key_values if use_cache else None,
            hidden_states=tuple(states) if keeps_states else None,
            attentions=tuple(attentions) if keeps_attentions else None,
        )

    def _distance_embeddings(self, like: torch.Tensor) -> torch.Tensor:
        """Return sine and cosine embeddings of the distances 0, 1, ..., `(max_position_embeddings, hidden_size)`."""
        width = self.config.hidden_size
        # Computed in float32 for every dtype: half precision is too coarse.
        distances = torch.arange(self.config.max_position_embeddings, device=like.device, dtype=torch.float32)
        frequencies = 10_000 ** (-torch.arange(0, width, 2, device=like.device, dtype=torch.float32) / width)
        angles = distances[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=-1).to(like.dtype)


class TensorizedTransformerLMHeadModel(TensorizedTransformerPreTrainedModel, GenerationMixin):
    """The Tensorized Transformer as a causal language model. The output embedding is tied to the input embedding."""

    _tied_weights_keys: ClassVar = {"lm_head.weight": "transformer.embeddings.weight"}  # pyrefly: ignore[bad-override]

    def __init__(self, config: TensorizedTransformerConfig):
        super().__init__(config)
        self.transformer = TensorizedTransformerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        # Tells Trainer that the model shifts the labels, so that it counts the targets correctly.
        self.loss_type = "ForCausalLM"
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs,
    ) -> CausalLMOutputWithPast:
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache)
        outputs = self.transformer(*inputs, return_dict=True, **kwargs)
        logits = self.lm_head(keep_positions(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss, logits, outputs.past_key_values, outputs.hidden_states, outputs.attentions)


class WDRNgramTensorizedTransformerConfig(NgramConfigMixin, TensorizedTransformerConfig):
    """A [`TensorizedTransformerConfig`] with the N-gram fields: see [`NgramConfigMixin`]."""

    model_type = "wdr_ngram_tensorized_transformer"


class WDRNgramTensorizedTransformerLMHeadModel(NgramMixin, TensorizedTransformerLMHeadModel, GenerationMixin):
    """A [`TensorizedTransformerLMHeadModel`] with N-gram heads, the paper's TT: see [`NgramMixin`]."""

    config: WDRNgramTensorizedTransformerConfig


register(TensorizedTransformerLMHeadModel)
register(WDRNgramTensorizedTransformerLMHeadModel)
