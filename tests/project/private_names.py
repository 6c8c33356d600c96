"""
Private or undocumented names of other libraries that the package relies on, and why.

Only `test_private_names.py` imports this module. It has one case per name, so a release that removes a name or changes
its parameters fails in one line.
"""

from dataclasses import dataclass

# Each entry has the path of the name, `package.module:Class.method`, and these lines:
# - `takes`: the parameters we pass or override, positional ones before `*`. Other parameters need defaults, unless the
#   list ends with `...`.
# - the modules of this package that use the name, and the reason.
# - `set by`: for an attribute of instances, the class or function that sets it.
NAMES = """\
accelerate.accelerator:Accelerator._models
    training/trainer.py: distinguish a model prepared for training from one that is only evaluated
    set by accelerate.accelerator:Accelerator

argparse:ArgumentDefaultsHelpFormatter._get_help_string
    takes action
    training/common/option_parser.py: leave `(default: None)` out of the help
argparse:HelpFormatter._format_action_invocation
    takes action
    training/common/option_parser.py: show one spelling of each option in the help
argparse:ArgumentParser._actions
    training/common/option_parser.py: list the options, for suggestions and YAML files
    set by argparse:_ActionsContainer

datasets.arrow_dataset:Dataset._fingerprint
    data/stream.py and data/pair_batches.py: find the tokenized text of an earlier run in the cache
    set by datasets.arrow_dataset:Dataset
datasets.arrow_writer:SchemaInferenceError
    data/text.py: find out that a split has no rows
datasets.fingerprint:Hasher.hash
    takes value
    data/stream.py and data/pair_batches.py: find the tokenized text of an earlier run in the cache

evaluate.module:EvaluationModule._compute
    takes *, predictions, references
    metrics/: implement a metric, the documented way
evaluate.module:EvaluationModule._info
    takes
    metrics/: describe a metric, the documented way

torch._C:_current_graph_task_id
    modeling/watch.py: tell whether a gradient arrived in this backward pass or in an earlier one
torch._dynamo:mark_static_address
    takes t
    decoding/history.py: keep the history of a static cache at one address under CUDA graphs
torch.autograd:Variable._execution_engine.queue_callback
    modeling/watch.py: check the heads' gradients after the backward pass
torch.nn:Module._compiled_call_impl
    decoding/few_tokens.py: leave the layers of a compiled model as they are
torch.distributed.tensor:DTensor
    training/run_trainer.py: look at the local part of sharded weights for numbers that are not finite

transformers.cache_utils:BaseQuantizedLayer
    decoding/ragged_cache.py: raise an error for caches that cannot drop rejected drafts
transformers.cache_utils:Cache._is_user_defined
    decoding/loop.py: leave the caller's cache in the state that plain decoding would
    set by transformers.generation.utils:GenerationMixin._prepare_cache_for_generation
transformers.cache_utils:Cache.activate_past_recording
    takes
    decoding/ragged_cache.py: make sliding windows keep old tokens until the drafts are checked
transformers.cache_utils:Cache.get_mask_sizes
    takes query_length, layer_idx
    backbones/tensorized_model.py: get the number of columns of a static cache
transformers.cache_utils:Cache.layers
    decoding/history.py and decoding/ragged_cache.py: keep the ensemble's history on the first layer
    set by transformers.cache_utils:Cache
transformers.cache_utils:CacheLayerMixin._layer_type
    decoding/history.py: leave a layer type's entry in the registry with the stock class
transformers.cache_utils:CacheLayerMixin.is_croppable
    decoding/ragged_cache.py: raise an error for caches that cannot drop rejected drafts
transformers.cache_utils:CacheLayerMixin.is_initialized
    decoding/history.py: check whether a static history is empty
    set by transformers.cache_utils:CacheLayerMixin
transformers.cache_utils:CacheLayerMixin.keys
    decoding/history.py and decoding/ragged_cache.py: hold the history's hidden states, and move the rows of a layer
    set by transformers.cache_utils:CacheLayerMixin
transformers.cache_utils:CacheLayerMixin.lazy_initialization
    takes key_states, value_states
    decoding/history.py: keep the history's records as integers
transformers.cache_utils:CacheLayerMixin.values
    decoding/history.py and decoding/ragged_cache.py: hold the history's records, and move the rows of a layer
    set by transformers.cache_utils:CacheLayerMixin
transformers.cache_utils:DYNAMIC_LAYER_TYPE_MAPPING
    decoding/history.py: know the classes of dynamic layers before anything is compiled
transformers.cache_utils:DynamicLayer.crop
    takes tokens_to_remove
    decoding/history.py: empty a history that is cropped to nothing
transformers.cache_utils:DynamicSlidingWindowLayer.cumulative_length
    decoding/ragged_cache.py: remove columns that are padding in every row
    set by transformers.cache_utils:DynamicSlidingWindowLayer
transformers.cache_utils:DynamicSlidingWindowLayer.record_past
    decoding/ragged_cache.py: stop recording at the end of decoding
    set by transformers.cache_utils:DynamicSlidingWindowLayer
transformers.cache_utils:EncoderDecoderCache.self_attention_cache
    decoding/history.py: find the part of the cache that grows with the text
    set by transformers.cache_utils:EncoderDecoderCache
transformers.cache_utils:STATIC_LAYER_TYPE_MAPPING
    decoding/history.py: know the classes of static layers before anything is compiled
transformers.cache_utils:StaticLayer.cumulative_length
    decoding/history.py: count the tokens in a static history
    set by transformers.cache_utils:StaticLayer
transformers.cache_utils:StaticLayer.max_cache_len
    decoding/history.py: keep as many hidden states as the heads read
    set by transformers.cache_utils:StaticLayer
transformers.cli.serving.model_manager:transformers
    modeling/lookup.py: let the server find the class of a checkpoint
transformers.cli.transformers:app
    serve/__main__.py: start Transformers' server with its own options
transformers.generation.configuration_utils:GenerationConfig._from_model_config
    modeling/generation.py and modeling/default_drafts.py: save λ and the options of drafts in `generation_config` so
        that loading keeps them
    set by transformers.generation.configuration_utils:GenerationConfig
transformers.generation.logits_process:PrefixConstrainedLogitsProcessor._prefix_allowed_tokens_fn
    decoding/rows.py: allow no token after a forbidden draft, instead of raising an error
    set by transformers.generation.logits_process:PrefixConstrainedLogitsProcessor
transformers.generation.logits_process:UnbatchedClassifierFreeGuidanceLogitsProcessor.model
    modeling/generation.py: give the guidance's own forward passes the same λ
    set by transformers.generation.logits_process:UnbatchedClassifierFreeGuidanceLogitsProcessor
transformers.generation.stopping_criteria:EosTokenCriteria.eos_token_id
    decoding/rows.py: find the end of a row without calling the criterion once per draft
    set by transformers.generation.stopping_criteria:EosTokenCriteria
transformers.generation.stopping_criteria:StoppingCriteriaList.max_length
    decoding/loop.py: respect the length limit of the caller's criteria
transformers.generation.utils:ALL_CACHE_NAMES
    modeling/causal.py: find the argument of a backbone that holds the cache
transformers.generation.utils:GenerationMixin._assisted_decoding
    takes input_ids, logits_processor, stopping_criteria, generation_config, *, synced_gpus, streamer, inputs_tensor,
        assistant_model, assistant_tokenizer, tokenizer
    modeling/generation.py: run speculative decoding for `use_mtp=True`, also in batches
transformers.generation.utils:GenerationMixin._get_candidate_generator
    takes generation_config, *, logits_processor, model_kwargs, ...
    modeling/generation.py: not pass λ to an assistant model
transformers.generation.utils:GenerationMixin._get_logits_processor
    takes *, logits_processor, model_kwargs, ...
    modeling/generation.py: read λ from `NgramEnsembleLogitsProcessor`, and pass it to classifier-free guidance
transformers.generation.utils:GenerationMixin._prefill
    takes input_ids, generation_config, model_kwargs
    decoding/loop.py: read the prompt like plain decoding, in chunks if requested
transformers.generation.utils:GenerationMixin._prepare_generation_config
    takes generation_config
    modeling/generation.py: accept the options for drafts in `generate`
transformers.generation.utils:GenerationMixin._prepare_text_encoder_decoder_kwargs_for_generation
    takes inputs_tensor, model_kwargs, ...
    modeling/encoder_decoder.py: not pass λ to the encoder
transformers.generation.utils:GenerationMixin._sample
    takes input_ids, logits_processor, stopping_criteria, generation_config, *, synced_gpus, streamer
    modeling/generation.py: decode without drafts if the model's default `use_mtp` is not possible
transformers.generation.utils:GenerationMixin._validate_generation_mode
    takes generation_mode, generation_config, generation_mode_kwargs
    modeling/generation.py: check the options for drafts, and allow batches
transformers.generation.utils:GenerationMixin.adjust_generation_fn
    takes generation_config, ...
    modeling/default_drafts.py: load the default of `use_mtp`
transformers.generation.utils:GenerationMixin.prepare_inputs_for_generation
    takes input_ids, *, next_sequence_length, is_first_iteration
    decoding/loop.py: prepare the inputs of a forward pass over several drafts
transformers.activations:ACT2FN
    method/configuration.py and method/heads.py: get the heads' activation by name
transformers.configuration_utils:PreTrainedConfig._attn_implementation
    backbones/with_heads.py: copy the attention implementation of a model
transformers.conversion_mapping:get_checkpoint_conversion_mapping
    takes model_type
    modeling/checkpoint.py: read weights that the backbone stores under other names
transformers.conversion_mapping:register_checkpoint_conversion_mapping
    takes model_type_or_class_name, mapping, *, overwrite
    modeling/checkpoint.py: read weights that the backbone stores under other names
transformers.hf_argparser:HfArg
    takes *, help, default
    training/common/arguments.py: define options with help texts
transformers.initialization:copy_
    takes tensor, other
    modeling/causal.py and backbones/tensorized_model.py: initialize only the weights that a checkpoint lacks
transformers.initialization:normal_
    takes tensor, *, std
    modeling/base.py and backbones/tensorized_model.py: initialize only the weights that a checkpoint lacks
transformers.initialization:zeros_
    takes tensor
    modeling/base.py: initialize only the weights that a checkpoint lacks
transformers.modeling_utils:PreTrainedModel._adjust_missing_and_unexpected_keys
    takes loading_info
    modeling/checkpoint.py: report missing heads in one line or an error instead of Transformers' table
transformers.modeling_utils:PreTrainedModel._init_weights
    takes module
    modeling/base.py, modeling/causal.py and backbones/tensorized_model.py: initialize the heads like the backbone
transformers.modeling_utils:PreTrainedModel._is_stateful
    modeling/generation.py, training/common/model.py and backbones/reformer.py: refuse drafts in states without undo
transformers.modeling_utils:PreTrainedModel._no_split_modules
    backbones/marian.py and backbones/tensorized_model.py: name the layers that FSDP does not split
transformers.modeling_utils:PreTrainedModel._skip_keys_device_placement
    backbones/tensorized_model.py: not move the cache to another device
transformers.modeling_utils:PreTrainedModel._tied_weights_keys
    backbones/tensorized_model.py: tie the output embedding to the input embedding
transformers.modeling_utils:PreTrainedModel.all_tied_weights_keys
    training/trainer.py: not report tied weights as missing when a run resumes
    set by transformers.modeling_utils:PreTrainedModel
transformers.modeling_utils:PreTrainedModel.loss_function
    backbones/tensorized_model.py: compute the stock next-token loss
transformers.modeling_utils:PreTrainedModel.loss_type
    modeling/causal.py and backbones/tensorized_model.py: tell Trainer that the model shifts the labels
    set by transformers.modeling_utils:PreTrainedModel
transformers.modeling_utils:PreTrainedModel._keys_to_ignore_on_load_unexpected
    backbones/trunk.py: leave the heads out of a stock model without a report
    set by transformers.modeling_utils:PreTrainedModel.post_init
transformers.modeling_utils:slice_logits_to_keep
    takes hidden_states, logits_to_keep
    modeling/causal.py and backbones/tensorized_model.py: apply `logits_to_keep`
transformers.models.auto.configuration_auto:AutoConfig
    auto_classes.py: register model types as soon as this module is imported
transformers.models.auto.configuration_auto:CONFIG_MAPPING_NAMES
    auto_classes.py: list the model types of possible backbones
transformers.models.auto:modeling_auto
    backbones/trunk.py: find the stock classes of all tasks
transformers.models.auto.modeling_auto:MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    backbones/checks.py and backbones/registry.py: list the supported backbones without importing them
transformers.models.auto.modeling_auto:MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    backbones/checks.py and backbones/registry.py: list the supported backbones without importing them
transformers.utils:can_return_tuple
    takes func
    modeling/causal.py, modeling/masked.py and backbones/tensorized_model.py: support `return_dict=False`
transformers.models.bart.modeling_bart:BartDecoder.embed_positions
    modeling/positions.py: give every row of a batch its own positions
    set by transformers.models.bart.modeling_bart:BartDecoder
transformers.models.bart.modeling_bart:BartForConditionalGeneration.final_logits_bias
    method/logits.py: add the logit bias, which is not part of the output embedding
    set by transformers.models.bart.modeling_bart:BartForConditionalGeneration
transformers.models.bart.modeling_bart:BartLearnedPositionalEmbedding.offset
    modeling/positions.py: look up a row's positions in BART's table
    set by transformers.models.bart.modeling_bart:BartLearnedPositionalEmbedding
transformers.models.bert.modeling_bert:BertForMaskedLM.cls
    backbones/bert.py: transform hidden states as BERT does before its output embedding
    set by transformers.models.bert.modeling_bert:BertForMaskedLM
transformers.models.bert.modeling_bert:BertLMPredictionHead.transform
    backbones/bert.py: transform hidden states as BERT does before its output embedding
    set by transformers.models.bert.modeling_bert:BertLMPredictionHead
transformers.models.blenderbot.modeling_blenderbot:shift_tokens_right
    takes input_ids, pad_token_id, decoder_start_token_id
    modeling/encoder_decoder.py: create decoder inputs from labels for backbones without a method for it
transformers.models.marian.modeling_marian:MarianDecoder.embed_positions
    modeling/positions.py: give every row of a batch its own positions
    set by transformers.models.marian.modeling_marian:MarianDecoder
transformers.models.marian.modeling_marian:MarianMTModel.final_logits_bias
    method/logits.py: add the logit bias, which is not part of the output embedding
    set by transformers.models.marian.modeling_marian:MarianMTModel
transformers.models.marian.modeling_marian:MarianSinusoidalPositionalEmbedding
    evaluation/models.py: freeze Marian's sinusoidal positions
transformers.models.mixtral.modeling_mixtral:load_balancing_loss_func
    takes gate_logits, num_experts, top_k, attention_mask
    modeling/routers.py: add the load-balancing loss of a mixture of experts
transformers.models.modernbert.modeling_modernbert:ModernBertForMaskedLM.head
    backbones/modernbert.py: transform hidden states as ModernBERT does before its output embedding
    set by transformers.models.modernbert.modeling_modernbert:ModernBertForMaskedLM
transformers.models.reformer.modeling_reformer:LSHSelfAttention._hash_vectors
    takes vectors, num_hashes, attention_mask, increase_num_buckets
    backbones/reformer.py: keep the dropout of LSH attention independent of its hashing
transformers.models.reformer.modeling_reformer:ReformerDynamicCache.buckets_cache
    backbones/reformer.py: remove padding from the cache
    set by transformers.models.reformer.modeling_reformer:ReformerDynamicCache
transformers.models.reformer.modeling_reformer:ReformerDynamicCache.get_start_idx
    takes
    backbones/reformer.py: get the number of tokens in the cache
transformers.models.reformer.modeling_reformer:ReformerDynamicCache.reorder_cache
    takes beam_idx
    backbones/reformer.py: reorder the ensemble's history with the beams
transformers.models.reformer.modeling_reformer:ReformerDynamicCache.states_cache
    backbones/reformer.py: remove padding from the cache
    set by transformers.models.reformer.modeling_reformer:ReformerDynamicCache
transformers.models.reformer.modeling_reformer:ReformerLayer._init_attention_seed
    takes
    backbones/reformer.py: make Reformer's training reproducible
transformers.models.reformer.modeling_reformer:ReformerLayer._init_feed_forward_seed
    takes
    backbones/reformer.py: make Reformer's training reproducible
transformers.models.reformer.modeling_reformer:ReformerLayer.attention_seed
    backbones/reformer.py: make Reformer's training reproducible
    set by transformers.models.reformer.modeling_reformer:ReformerLayer
transformers.models.reformer.modeling_reformer:ReformerLayer.feed_forward_seed
    backbones/reformer.py: make Reformer's training reproducible
    set by transformers.models.reformer.modeling_reformer:ReformerLayer
transformers.models.t5.modeling_t5:T5ForConditionalGeneration.model_dim
    backbones/t5.py: scale T5's outputs
    set by transformers.models.t5.modeling_t5:T5ForConditionalGeneration
transformers.integrations:get_reporting_integration_callbacks
    takes report_to
    training/common/trainer_parts.py: check `--report_to` before the training
transformers.trainer:Trainer._clip_grad_norm
    takes model
    training/head_schedule.py: clip free heads apart
transformers.trainer:Trainer._issue_warnings_after_load
    takes load_result
    training/trainer.py: not report tied weights as missing when a run resumes
transformers.trainer:Trainer._load_from_checkpoint
    takes resume_from_checkpoint, model
    training/common/train.py and training/trainer.py: load the weights of a run that was interrupted after its last
        step, and check that they mean what the model's configuration says
transformers.trainer:Trainer.callback_handler
    training/trainer.py: show the progress of an evaluation
    set by transformers.trainer:Trainer
transformers.trainer:Trainer.current_gradient_accumulation_steps
    training/trainer.py: average the bag-of-words loss over the steps since the last log
    set by transformers.trainer:Trainer
transformers.trainer:Trainer.is_deepspeed_enabled
    evaluation/gradient_diversity.py: raise an error for sharded weights
    set by transformers.trainer:Trainer
transformers.trainer:Trainer.is_fsdp_enabled
    evaluation/gradient_diversity.py: raise an error for sharded weights
    set by transformers.trainer:Trainer
transformers.trainer:Trainer.model_accepts_loss_kwargs
    training/glue/run.py: average a classifier's loss over gradient accumulation
    set by transformers.trainer:Trainer
transformers.trainer_callback:CallbackHandler.eval_dataloader
    training/trainer.py: show the progress of an evaluation
    set by transformers.trainer_callback:CallbackHandler
transformers.trainer_callback:CallbackHandler.on_prediction_step
    takes args, state, control
    training/trainer.py: show the progress of an evaluation
transformers.trainer_utils:EvalLoopOutput
    takes *, predictions, label_ids, metrics, num_samples
    training/trainer.py: return a custom evaluation to Trainer

trl.trainer.sft_trainer:SFTTrainer._metrics
    training/sft.py: log the heads' losses with TRL's own metrics
    set by trl.trainer.sft_trainer:SFTTrainer
trl.trainer.sft_trainer:SFTTrainer._total_train_tokens
    training/sft.py: count tokens like TRL
    set by trl.trainer.sft_trainer:SFTTrainer
"""


@dataclass(frozen=True)
class PrivateName:
    """An entry of `NAMES`."""

    path: str
    used_by: str
    reason: str
    parameters: str | None = None
    set_by: str | None = None

    @classmethod
    def from_lines(cls, path: str, *lines: str) -> "PrivateName":
        fields = {"parameters": None, "set_by": None}
        for line in lines:
            if line.startswith("takes"):
                fields["parameters"] = line.removeprefix("takes").strip()
            elif line.startswith("set by "):
                fields["set_by"] = line.removeprefix("set by ")
            else:
                fields["used_by"], _, fields["reason"] = line.partition(": ")
        return cls(path, **fields)

    @property
    def library(self) -> str:
        return self.path.partition(":")[0].partition(".")[0]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.replace(":", ".").rpartition(".")[2]


def _read() -> tuple[PrivateName, ...]:
    entries: list[list[str]] = []
    for line in filter(None, NAMES.splitlines()):
        if line.startswith(" " * 8):
            entries[-1][-1] += f" {line.strip()}"
        elif line.startswith(" "):
            entries[-1].append(line.strip())
        else:
            entries.append([line])
    return tuple(PrivateName.from_lines(*entry) for entry in entries)


PRIVATE_NAMES = _read()
