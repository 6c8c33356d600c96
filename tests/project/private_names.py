"""
Private or undocumented names of other libraries that the package relies on, and why.

Nothing imports this module but its test, which has one case per name: when a new release removes a name or changes its
parameters, one line says so.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PrivateName:
    r"""
    Args:
        path (`str`): An importable module, a colon, and the name inside it: `"package.module:Class.method"`.
        used_by (`str`): The module of this package that relies on it.
        reason (`str`): What for.
        parameters (`str`, *optional*):
            The parameters we pass or override: those passed by position, `*`, those passed by keyword. With `...` at
            the end, any others are handed on as they came; without, they must have defaults.
        set_by (`str`, *optional*):
            For an attribute that only instances have: the class or function, as a path, whose source sets it.
    """

    path: str
    used_by: str
    reason: str
    parameters: str | None = None
    set_by: str | None = None

    @property
    def library(self) -> str:
        return self.path.partition(":")[0].partition(".")[0]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.replace(":", ".").rpartition(".")[2]


ACCELERATE = (
    PrivateName(
        "accelerate.accelerator:Accelerator._models",
        "training/trainer.py",
        "tell a model prepared for training from one that is only evaluated",
        set_by="accelerate.accelerator:Accelerator",
    ),
)

ARGPARSE = (
    PrivateName(
        "argparse:ArgumentDefaultsHelpFormatter._get_help_string",
        "training/common/command_line.py",
        "leave `(default: None)` out of the help",
        parameters="action",
    ),
    PrivateName(
        "argparse:ArgumentParser._actions",
        "training/common/command_line.py",
        "know the options that a YAML file may set, and which of them take lists",
        set_by="argparse:_ActionsContainer",
    ),
)

DATASETS = (
    PrivateName(
        "datasets.arrow_dataset:Dataset._fingerprint",
        "data/stream.py and data/pair_batches.py",
        "find the tokenized text of an earlier run in the cache",
        set_by="datasets.arrow_dataset:Dataset",
    ),
    PrivateName(
        "datasets.fingerprint:Hasher.hash",
        "data/stream.py and data/pair_batches.py",
        "find the tokenized text of an earlier run in the cache",
        parameters="value",
    ),
)

EVALUATE = (
    PrivateName(
        "evaluate.module:EvaluationModule._compute",
        "metrics/",
        "implement a metric, the documented way",
        parameters="*, predictions, references",
    ),
    PrivateName(
        "evaluate.module:EvaluationModule._info",
        "metrics/",
        "describe a metric, the documented way",
        parameters="",
    ),
)

TORCH = (
    PrivateName(
        "torch._dynamo:mark_static_address",
        "decoding/history.py",
        "keep the history of a static cache at one address under CUDA graphs",
        parameters="t",
    ),
    PrivateName(
        "torch.autograd:Variable._execution_engine.queue_callback",
        "modeling/watch.py",
        "look for the heads' gradients once the backward pass is complete",
    ),
)

TRANSFORMERS_CACHE = (
    PrivateName(
        "transformers.cache_utils:BaseQuantizedLayer",
        "decoding/ragged_cache.py",
        "refuse caches that cannot take rejected drafts back",
    ),
    PrivateName(
        "transformers.cache_utils:Cache._is_user_defined",
        "decoding/loop.py",
        "leave a cache of the caller's as plain decoding leaves it",
        set_by="transformers.generation.utils:GenerationMixin._prepare_cache_for_generation",
    ),
    PrivateName(
        "transformers.cache_utils:Cache.activate_past_recording",
        "decoding/ragged_cache.py",
        "make sliding windows keep what they would drop until the drafts are judged",
        parameters="",
    ),
    PrivateName(
        "transformers.cache_utils:Cache.get_mask_sizes",
        "backbones/tensorized_model.py",
        "know how many columns a static cache has",
        parameters="query_length, layer_idx",
    ),
    PrivateName(
        "transformers.cache_utils:Cache.layers",
        "decoding/history.py and decoding/ragged_cache.py",
        "keep the ensemble's history as one more layer",
        set_by="transformers.cache_utils:Cache",
    ),
    PrivateName(
        "transformers.cache_utils:CacheLayerMixin.is_croppable",
        "decoding/ragged_cache.py",
        "refuse caches that cannot take rejected drafts back",
    ),
    PrivateName(
        "transformers.cache_utils:CacheLayerMixin.is_initialized",
        "decoding/history.py",
        "know whether a static history holds anything",
        set_by="transformers.cache_utils:CacheLayerMixin",
    ),
    PrivateName(
        "transformers.cache_utils:CacheLayerMixin.keys",
        "decoding/history.py and decoding/ragged_cache.py",
        "hold the history's hidden states, and move the rows of a layer",
        set_by="transformers.cache_utils:CacheLayerMixin",
    ),
    PrivateName(
        "transformers.cache_utils:CacheLayerMixin.lazy_initialization",
        "decoding/history.py",
        "keep the history's records in integers",
        parameters="key_states, value_states",
    ),
    PrivateName(
        "transformers.cache_utils:CacheLayerMixin.values",
        "decoding/history.py and decoding/ragged_cache.py",
        "hold the history's records, and move the rows of a layer",
        set_by="transformers.cache_utils:CacheLayerMixin",
    ),
    PrivateName(
        "transformers.cache_utils:DynamicLayer.crop",
        "decoding/history.py",
        "empty a history that is cropped to nothing",
        parameters="tokens_to_remove",
    ),
    PrivateName(
        "transformers.cache_utils:DynamicSlidingWindowLayer.cumulative_length",
        "decoding/ragged_cache.py",
        "remove columns that are padding in every row",
        set_by="transformers.cache_utils:DynamicSlidingWindowLayer",
    ),
    PrivateName(
        "transformers.cache_utils:DynamicSlidingWindowLayer.record_past",
        "decoding/ragged_cache.py",
        "stop recording when the decoding ends",
        set_by="transformers.cache_utils:DynamicSlidingWindowLayer",
    ),
    PrivateName(
        "transformers.cache_utils:EncoderDecoderCache.self_attention_cache",
        "decoding/history.py",
        "find the part of the cache that grows with the text",
        set_by="transformers.cache_utils:EncoderDecoderCache",
    ),
    PrivateName(
        "transformers.cache_utils:StaticLayer.cumulative_length",
        "decoding/history.py",
        "count the tokens in a static history",
        set_by="transformers.cache_utils:StaticLayer",
    ),
    PrivateName(
        "transformers.cache_utils:StaticLayer.max_cache_len",
        "decoding/history.py",
        "keep as many hidden states as the heads look back on",
        set_by="transformers.cache_utils:StaticLayer",
    ),
)

TRANSFORMERS_GENERATION = (
    PrivateName(
        "transformers.generation.logits_process:PrefixConstrainedLogitsProcessor._prefix_allowed_tokens_fn",
        "decoding/rows.py",
        "allow nothing after a draft that the constraint forbids, instead of raising",
        set_by="transformers.generation.logits_process:PrefixConstrainedLogitsProcessor",
    ),
    PrivateName(
        "transformers.generation.logits_process:UnbatchedClassifierFreeGuidanceLogitsProcessor.model",
        "modeling/generation.py",
        "give the guidance's own forward passes the same λ",
        set_by="transformers.generation.logits_process:UnbatchedClassifierFreeGuidanceLogitsProcessor",
    ),
    PrivateName(
        "transformers.generation.stopping_criteria:EosTokenCriteria.eos_token_id",
        "decoding/rows.py",
        "find the end of a row without calling the criterion once per draft",
        set_by="transformers.generation.stopping_criteria:EosTokenCriteria",
    ),
    PrivateName(
        "transformers.generation.stopping_criteria:StoppingCriteriaList.max_length",
        "decoding/loop.py",
        "stop where a criterion of the caller's says",
    ),
    PrivateName(
        "transformers.generation.utils:ALL_CACHE_NAMES",
        "modeling/causal.py",
        "find the argument of a backbone that holds the cache",
    ),
    PrivateName(
        "transformers.generation.utils:GenerationMixin._assisted_decoding",
        "modeling/generation.py",
        "decode with drafts for `use_mtp=True`, whole batches included",
        parameters="input_ids, logits_processor, stopping_criteria, generation_config, *, synced_gpus, streamer, "
        "inputs_tensor, assistant_model, assistant_tokenizer, tokenizer",
    ),
    PrivateName(
        "transformers.generation.utils:GenerationMixin._get_candidate_generator",
        "modeling/generation.py",
        "keep λ from an assistant model, which has its own or none",
        parameters="generation_config, *, logits_processor, model_kwargs, ...",
    ),
    PrivateName(
        "transformers.generation.utils:GenerationMixin._get_logits_processor",
        "modeling/generation.py",
        "read λ from `NgramEnsembleLogitsProcessor`, and hand it to classifier-free guidance",
        parameters="*, logits_processor, model_kwargs, ...",
    ),
    PrivateName(
        "transformers.generation.utils:GenerationMixin._prefill",
        "decoding/loop.py",
        "read the prompt as plain decoding does, in chunks if asked to",
        parameters="input_ids, generation_config, model_kwargs",
    ),
    PrivateName(
        "transformers.generation.utils:GenerationMixin._prepare_generation_config",
        "modeling/generation.py",
        "let `generate` take the options for drafts",
        parameters="generation_config",
    ),
    PrivateName(
        "transformers.generation.utils:GenerationMixin._prepare_text_encoder_decoder_kwargs_for_generation",
        "modeling/encoder_decoder.py",
        "keep λ from the encoder",
        parameters="inputs_tensor, model_kwargs, ...",
    ),
    PrivateName(
        "transformers.generation.utils:GenerationMixin._validate_generation_mode",
        "modeling/generation.py",
        "check the options for drafts, and let whole batches pass",
        parameters="generation_mode, generation_config, generation_mode_kwargs",
    ),
    PrivateName(
        "transformers.generation.utils:GenerationMixin.prepare_inputs_for_generation",
        "decoding/loop.py",
        "make the inputs of a forward pass over several drafts",
        parameters="input_ids, *, next_sequence_length, is_first_iteration",
    ),
)

TRANSFORMERS_MODELING = (
    PrivateName(
        "transformers.activations:ACT2FN",
        "method/configuration.py and method/heads.py",
        "find the heads' activation by its name",
    ),
    PrivateName(
        "transformers.configuration_utils:PreTrainedConfig._attn_implementation",
        "backbones/with_heads.py",
        "give a copied model the attention of the model it is copied from",
    ),
    PrivateName(
        "transformers.conversion_mapping:get_checkpoint_conversion_mapping",
        "modeling/checkpoint.py",
        "read weights that the backbone stores under other names",
        parameters="model_type",
    ),
    PrivateName(
        "transformers.conversion_mapping:register_checkpoint_conversion_mapping",
        "modeling/checkpoint.py",
        "read weights that the backbone stores under other names",
        parameters="model_type_or_class_name, mapping, *, overwrite",
    ),
    PrivateName(
        "transformers.hf_argparser:HfArg",
        "training/common/arguments.py",
        "give an option its help without `dataclasses.field`",
        parameters="*, help, default",
    ),
    PrivateName(
        "transformers.initialization:copy_",
        "modeling/causal.py and backbones/tensorized_model.py",
        "initialise what a checkpoint lacks, and nothing else",
        parameters="tensor, other",
    ),
    PrivateName(
        "transformers.initialization:normal_",
        "modeling/base.py and backbones/tensorized_model.py",
        "initialise what a checkpoint lacks, and nothing else",
        parameters="tensor, *, std",
    ),
    PrivateName(
        "transformers.initialization:zeros_",
        "modeling/base.py",
        "initialise what a checkpoint lacks, and nothing else",
        parameters="tensor",
    ),
    PrivateName(
        "transformers.modeling_utils:PreTrainedModel._init_weights",
        "modeling/base.py, modeling/causal.py and backbones/tensorized_model.py",
        "initialise the heads like the backbone",
        parameters="module",
    ),
    PrivateName(
        "transformers.modeling_utils:PreTrainedModel._is_stateful",
        "modeling/generation.py, training/clm/run.py and backbones/reformer.py",
        "refuse drafts where the state cannot go back",
    ),
    PrivateName(
        "transformers.modeling_utils:PreTrainedModel._no_split_modules",
        "backbones/marian.py and backbones/tensorized_model.py",
        "say which layers FSDP keeps whole",
    ),
    PrivateName(
        "transformers.modeling_utils:PreTrainedModel._skip_keys_device_placement",
        "backbones/tensorized_model.py",
        "leave the cache on its devices",
    ),
    PrivateName(
        "transformers.modeling_utils:PreTrainedModel._tied_weights_keys",
        "backbones/tensorized_model.py",
        "tie the output embedding to the input embedding",
    ),
    PrivateName(
        "transformers.modeling_utils:PreTrainedModel.all_tied_weights_keys",
        "training/trainer.py",
        "not report tied weights as missing when a run resumes",
        set_by="transformers.modeling_utils:PreTrainedModel",
    ),
    PrivateName(
        "transformers.modeling_utils:PreTrainedModel.loss_function",
        "backbones/tensorized_model.py",
        "compute the stock next-token loss",
    ),
    PrivateName(
        "transformers.modeling_utils:PreTrainedModel.loss_type",
        "modeling/causal.py and backbones/tensorized_model.py",
        "tell Trainer that the labels are shifted in the model, so that it counts the targets right",
        set_by="transformers.modeling_utils:PreTrainedModel",
    ),
    PrivateName(
        "transformers.modeling_utils:slice_logits_to_keep",
        "modeling/causal.py and backbones/tensorized_model.py",
        "keep the positions that `logits_to_keep` asks for",
        parameters="hidden_states, logits_to_keep",
    ),
    PrivateName(
        "transformers.models.auto.modeling_auto:MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        "backbones/checks.py and backbones/registry.py",
        "name the backbones that heads can be put on without importing them",
    ),
    PrivateName(
        "transformers.models.auto.modeling_auto:MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        "backbones/checks.py and backbones/registry.py",
        "name the backbones that heads can be put on without importing them",
    ),
    PrivateName(
        "transformers.utils:can_return_tuple",
        "modeling/causal.py, modeling/masked.py and backbones/tensorized_model.py",
        "honour `return_dict=False`",
        parameters="func",
    ),
)

TRANSFORMERS_MODELS = (
    PrivateName(
        "transformers.models.bart.modeling_bart:BartDecoder.embed_positions",
        "modeling/positions.py",
        "give every row of a batch its own positions",
        set_by="transformers.models.bart.modeling_bart:BartDecoder",
    ),
    PrivateName(
        "transformers.models.bart.modeling_bart:BartForConditionalGeneration.final_logits_bias",
        "method/logits.py",
        "add the logit bias that is kept beside the output embedding",
        set_by="transformers.models.bart.modeling_bart:BartForConditionalGeneration",
    ),
    PrivateName(
        "transformers.models.bart.modeling_bart:BartLearnedPositionalEmbedding.offset",
        "modeling/positions.py",
        "look up a row's positions in BART's table",
        set_by="transformers.models.bart.modeling_bart:BartLearnedPositionalEmbedding",
    ),
    PrivateName(
        "transformers.models.bert.modeling_bert:BertForMaskedLM.cls",
        "backbones/bert.py",
        "transform hidden states as BERT does before its output embedding",
        set_by="transformers.models.bert.modeling_bert:BertForMaskedLM",
    ),
    PrivateName(
        "transformers.models.bert.modeling_bert:BertLMPredictionHead.transform",
        "backbones/bert.py",
        "transform hidden states as BERT does before its output embedding",
        set_by="transformers.models.bert.modeling_bert:BertLMPredictionHead",
    ),
    PrivateName(
        "transformers.models.blenderbot.modeling_blenderbot:shift_tokens_right",
        "modeling/encoder_decoder.py",
        "make the decoder's inputs from labels for backbones without a method for it",
        parameters="input_ids, pad_token_id, decoder_start_token_id",
    ),
    PrivateName(
        "transformers.models.marian.modeling_marian:MarianDecoder.embed_positions",
        "modeling/positions.py",
        "give every row of a batch its own positions",
        set_by="transformers.models.marian.modeling_marian:MarianDecoder",
    ),
    PrivateName(
        "transformers.models.marian.modeling_marian:MarianMTModel.final_logits_bias",
        "method/logits.py",
        "add the logit bias that is kept beside the output embedding",
        set_by="transformers.models.marian.modeling_marian:MarianMTModel",
    ),
    PrivateName(
        "transformers.models.marian.modeling_marian:MarianSinusoidalPositionalEmbedding",
        "evaluation/checkpoint.py",
        "freeze the sine waves of Marian's positions",
    ),
    PrivateName(
        "transformers.models.mixtral.modeling_mixtral:load_balancing_loss_func",
        "modeling/routers.py",
        "add the load-balancing loss of a mixture of experts",
        parameters="gate_logits, num_experts, top_k, attention_mask",
    ),
    PrivateName(
        "transformers.models.modernbert.modeling_modernbert:ModernBertForMaskedLM.head",
        "backbones/modernbert.py",
        "transform hidden states as ModernBERT does before its output embedding",
        set_by="transformers.models.modernbert.modeling_modernbert:ModernBertForMaskedLM",
    ),
    PrivateName(
        "transformers.models.reformer.modeling_reformer:ReformerDynamicCache.buckets_cache",
        "backbones/reformer.py",
        "cut what was padded out of the cache",
        set_by="transformers.models.reformer.modeling_reformer:ReformerDynamicCache",
    ),
    PrivateName(
        "transformers.models.reformer.modeling_reformer:ReformerDynamicCache.get_start_idx",
        "backbones/reformer.py",
        "know how many tokens the cache holds",
        parameters="",
    ),
    PrivateName(
        "transformers.models.reformer.modeling_reformer:ReformerDynamicCache.reorder_cache",
        "backbones/reformer.py",
        "reorder the ensemble's history with the beams",
        parameters="beam_idx",
    ),
    PrivateName(
        "transformers.models.reformer.modeling_reformer:ReformerDynamicCache.states_cache",
        "backbones/reformer.py",
        "cut what was padded out of the cache",
        set_by="transformers.models.reformer.modeling_reformer:ReformerDynamicCache",
    ),
    PrivateName(
        "transformers.models.reformer.modeling_reformer:ReformerLayer._init_attention_seed",
        "backbones/reformer.py",
        "make Reformer's training repeatable from the seed",
        parameters="",
    ),
    PrivateName(
        "transformers.models.reformer.modeling_reformer:ReformerLayer._init_feed_forward_seed",
        "backbones/reformer.py",
        "make Reformer's training repeatable from the seed",
        parameters="",
    ),
    PrivateName(
        "transformers.models.reformer.modeling_reformer:ReformerLayer.attention_seed",
        "backbones/reformer.py",
        "make Reformer's training repeatable from the seed",
        set_by="transformers.models.reformer.modeling_reformer:ReformerLayer",
    ),
    PrivateName(
        "transformers.models.reformer.modeling_reformer:ReformerLayer.feed_forward_seed",
        "backbones/reformer.py",
        "make Reformer's training repeatable from the seed",
        set_by="transformers.models.reformer.modeling_reformer:ReformerLayer",
    ),
    PrivateName(
        "transformers.models.t5.modeling_t5:T5ForConditionalGeneration.model_dim",
        "backbones/t5.py",
        "scale T5's outputs",
        set_by="transformers.models.t5.modeling_t5:T5ForConditionalGeneration",
    ),
)

TRANSFORMERS_TRAINER = (
    PrivateName(
        "transformers.integrations:get_reporting_integration_callbacks",
        "training/common/settings.py",
        "find out before the training whether `--report_to` works",
        parameters="report_to",
    ),
    PrivateName(
        "transformers.trainer:Trainer._get_collator_with_removed_columns",
        "evaluation/gradients.py",
        "make a training batch as Trainer does",
        parameters="data_collator",
    ),
    PrivateName(
        "transformers.trainer:Trainer._issue_warnings_after_load",
        "training/trainer.py",
        "not report tied weights as missing when a run resumes",
        parameters="load_result",
    ),
    PrivateName(
        "transformers.trainer:Trainer._load_from_checkpoint",
        "training/common/run.py",
        "load the result of a run that was interrupted after its last step",
        parameters="resume_from_checkpoint",
    ),
    PrivateName(
        "transformers.trainer:Trainer.callback_handler",
        "training/trainer.py and training/mlm/trainer.py",
        "show the progress of an evaluation, and find the time budget",
        set_by="transformers.trainer:Trainer",
    ),
    PrivateName(
        "transformers.trainer:Trainer.is_deepspeed_enabled",
        "evaluation/gradients.py",
        "refuse sharded weights",
        set_by="transformers.trainer:Trainer",
    ),
    PrivateName(
        "transformers.trainer:Trainer.is_fsdp_enabled",
        "evaluation/gradients.py",
        "refuse sharded weights",
        set_by="transformers.trainer:Trainer",
    ),
    PrivateName(
        "transformers.trainer:Trainer.model_accepts_loss_kwargs",
        "training/glue/run.py",
        "average a classifier's loss over gradient accumulation",
        set_by="transformers.trainer:Trainer",
    ),
    PrivateName(
        "transformers.trainer_callback:CallbackHandler.callbacks",
        "training/mlm/trainer.py",
        "find the time budget",
        set_by="transformers.trainer_callback:CallbackHandler",
    ),
    PrivateName(
        "transformers.trainer_callback:CallbackHandler.eval_dataloader",
        "training/trainer.py",
        "show the progress of an evaluation",
        set_by="transformers.trainer_callback:CallbackHandler",
    ),
    PrivateName(
        "transformers.trainer_callback:CallbackHandler.on_prediction_step",
        "training/trainer.py",
        "show the progress of an evaluation",
        parameters="args, state, control",
    ),
    PrivateName(
        "transformers.trainer_callback:ExportableState.state",
        "training/mlm/budget.py",
        "save the time used with a checkpoint",
        parameters="",
    ),
    PrivateName(
        "transformers.trainer_utils:EvalLoopOutput",
        "training/trainer.py",
        "return an evaluation of our own to Trainer",
        parameters="*, predictions, label_ids, metrics, num_samples",
    ),
)

TRL = (
    PrivateName(
        "trl.trainer.sft_trainer:SFTTrainer._metrics",
        "training/sft.py",
        "log the heads' losses with TRL's own metrics",
        set_by="trl.trainer.sft_trainer:SFTTrainer",
    ),
    PrivateName(
        "trl.trainer.sft_trainer:SFTTrainer._total_train_tokens",
        "training/sft.py",
        "count tokens as TRL does",
        set_by="trl.trainer.sft_trainer:SFTTrainer",
    ),
)

PRIVATE_NAMES: tuple[PrivateName, ...] = (
    *ACCELERATE,
    *ARGPARSE,
    *DATASETS,
    *EVALUATE,
    *TORCH,
    *TRANSFORMERS_CACHE,
    *TRANSFORMERS_GENERATION,
    *TRANSFORMERS_MODELING,
    *TRANSFORMERS_MODELS,
    *TRANSFORMERS_TRAINER,
    *TRL,
)
