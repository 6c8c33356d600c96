"""
Private names and undocumented functions of other libraries: those in `NAMES` are as the package expects them, and it
uses no other private names. A release that changes one fails in one line.
"""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ngram_wdr_hf

# By module. Where a name is called or overridden, the parameters that the package passes or has, positional ones
# before `*`. Other parameters need defaults, unless the list ends with `...`. An attribute of instances is set in the
# source of its class, or of the function before it.
NAMES = """\
datasets.arrow_dataset: Dataset._fingerprint
datasets.fingerprint: Hasher.hash(value)
evaluate.module: EvaluationModule._compute(*, predictions, references) EvaluationModule._info()
torch._C: _current_graph_task_id
torch._dynamo: mark_static_address(t)
torch.autograd: Variable._execution_engine.queue_callback
torch.nn: Module._compiled_call_impl
transformers.cache_utils:
    Cache.activate_past_recording() Cache.get_mask_sizes(query_length, layer_idx) CacheLayerMixin._layer_type
    CacheLayerMixin.lazy_initialization(key_states, value_states) DynamicLayer.crop(tokens_to_remove)
transformers.cli.serving.model_manager: transformers
transformers.configuration_utils: PreTrainedConfig._attn_implementation
transformers.conversion_mapping:
    get_checkpoint_conversion_mapping(model_type)
    register_checkpoint_conversion_mapping(model_type_or_class_name, mapping, *, overwrite)
transformers.generation.configuration_utils: GenerationConfig._from_model_config
transformers.generation.logits_process: PrefixConstrainedLogitsProcessor._prefix_allowed_tokens_fn
transformers.generation.utils:
    GenerationMixin._assisted_decoding(input_ids, logits_processor, stopping_criteria, generation_config, *,
        synced_gpus, streamer, inputs_tensor, assistant_model, assistant_tokenizer, tokenizer)
    GenerationMixin._get_candidate_generator(generation_config, *, logits_processor, model_kwargs, ...)
    GenerationMixin._get_logits_processor(*, logits_processor, model_kwargs, ...)
    GenerationMixin._prefill(input_ids, generation_config, model_kwargs)
    GenerationMixin._prepare_generation_config(generation_config)
    GenerationMixin._prepare_text_encoder_decoder_kwargs_for_generation(inputs_tensor, model_kwargs, ...)
    GenerationMixin._sample(input_ids, logits_processor, stopping_criteria, generation_config, *, synced_gpus,
        streamer) GenerationMixin._validate_generation_mode(generation_mode, generation_config, generation_mode_kwargs)
    GenerationMixin.adjust_generation_fn(generation_config, ...)
    GenerationMixin.prepare_inputs_for_generation(input_ids, *, next_sequence_length, is_first_iteration)
    GenerationMixin._prepare_cache_for_generation._is_user_defined
transformers.hf_argparser: HfArg(*, help, default)
transformers.initialization: copy_(tensor, other) normal_(tensor, *, std) zeros_(tensor)
transformers.modeling_utils:
    PreTrainedModel._adjust_missing_and_unexpected_keys(loading_info) PreTrainedModel._init_weights(module)
    PreTrainedModel._is_stateful PreTrainedModel._no_split_modules PreTrainedModel._skip_keys_device_placement
    PreTrainedModel._tied_weights_keys PreTrainedModel._keys_to_ignore_on_load_unexpected
    slice_logits_to_keep(hidden_states, logits_to_keep)
transformers.models.blenderbot.modeling_blenderbot:
    shift_tokens_right(input_ids, pad_token_id, decoder_start_token_id)
transformers.models.mixtral.modeling_mixtral:
    load_balancing_loss_func(gate_logits, num_experts, top_k, attention_mask)
transformers.models.reformer.modeling_reformer:
    LSHSelfAttention._hash_vectors(vectors, num_hashes, attention_mask, increase_num_buckets)
    ReformerDynamicCache.get_start_idx() ReformerDynamicCache.reorder_cache(beam_idx)
    ReformerLayer._init_attention_seed() ReformerLayer._init_feed_forward_seed()
transformers.trainer:
    Trainer._clip_grad_norm(model) Trainer._load_from_checkpoint(resume_from_checkpoint, model)
transformers.trainer_callback: CallbackHandler.on_prediction_step(args, state, control)
transformers.trainer_utils: EvalLoopOutput(*, predictions, label_ids, metrics, num_samples)
transformers.utils: can_return_tuple(func)
trl.trainer.sft_trainer: SFTTrainer._metrics SFTTrainer._total_train_tokens
"""
PACKAGE = Path(ngram_wdr_hf.__file__).parent
# Public names with an underscore.
NAMED_TUPLE = ("_asdict", "_fields", "_make", "_replace")
MADE_BY_METACLASSES = ("_abc_impl", "_backward_cls", "_field_defaults", "_fields", "_is_protocol")
GETTERS = ("getattr", "hasattr", "setattr")


class Name(NamedTuple):
    """An entry of `NAMES`."""

    module: str
    path: str
    parameters: str | None

    @property
    def last(self) -> str:
        return self.path.rpartition(".")[2]

    def change(self) -> str | None:
        """Describe how the name has changed; `None` if it is as expected."""
        *owners, last = self.path.split(".")
        try:
            owner = importlib.import_module(self.module)
            for part in owners:
                owner = getattr(owner, part)
        except (ImportError, AttributeError):
            return "gone"
        if not hasattr(owner, last):
            return None if any(sets(source, last) for source in getattr(owner, "__mro__", [owner])) else "gone"
        if self.parameters is None:
            return None
        signature = inspect.signature(getattr(owner, last))
        names = ", ".join(signature.parameters)
        return None if accepts(signature, self.parameters) else f"its parameters are now {names}"


def read_names() -> list[Name]:
    _, *parts = re.split(r"^(\S+):", NAMES, flags=re.MULTILINE)
    found = []
    for module, entries in zip(parts[::2], parts[1::2], strict=True):
        found += [Name(module, path, options) for path, options in re.findall(r"([\w.]+)(\([^)]*\))?", entries)]
    return [name._replace(parameters=name.parameters.strip("()") if name.parameters else None) for name in found]


def sets(owner: Any, attribute: str) -> bool:
    """Return whether the source of a class or function sets the attribute or registers it as a buffer."""
    name = re.escape(attribute)
    assignment = rf"\.{name}\b(\s*:[^=\n]+)?(\s*,\s*[\w.]+)*\s*=[^=]|\bregister_buffer\(\s*[\"']{name}[\"']"
    try:
        return re.search(assignment, inspect.getsource(owner)) is not None
    except (TypeError, OSError):  # builtin, or a module
        return False


def accepts(signature: inspect.Signature, expected: str) -> bool:
    """Return whether a call with the expected parameters, positional ones before `*`, still works."""
    positional, keyword = (re.findall(r"\w+", part) for part in f"{expected}*".split("*")[:2])
    positional = ["self"] * ("self" in signature.parameters) + positional
    bind = signature.bind_partial if "..." in expected else signature.bind
    try:
        bound = bind(*positional, **{name: name for name in keyword}).arguments
    except TypeError:
        return False
    return all(bound.get(name) == name for name in positional + keyword)


READ_NAMES = read_names()
# Every part of a listed path counts as listed, such as `_dynamo` in `torch._dynamo`.
LISTED = {part for name in READ_NAMES for part in f"{name.module}.{name.path}".split(".")}
SOURCES = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {path: ast.parse(source) for path, source in SOURCES.items()}


@pytest.mark.parametrize("name", READ_NAMES, ids=lambda name: f"{name.module}.{name.path}")
def test_name_exists_unchanged(name):
    pytest.importorskip(name.module.partition(".")[0])
    users = [str(path) for path, source in SOURCES.items() if re.search(rf"\b{name.last}\b", source)]
    assert users, "no longer used"
    assert name.change() is None, f"{name.change()}; used by {', '.join(users)}"


@pytest.mark.parametrize(
    ("replacements", "expected"),
    [
        ({"path": "GenerationMixin._gone"}, "gone"),
        ({"module": "transformers.generation.gone"}, "gone"),
        ({"parameters": "input_ids, another"}, "now self, input_ids, generation_config, model_kwargs"),
        ({"parameters": "generation_config, input_ids, model_kwargs"}, "its parameters"),
        ({"parameters": "input_ids, *, another"}, "its parameters"),
        ({"parameters": "input_ids, generation_config"}, "its parameters"),
    ],
)
def test_change_is_reported(replacements, expected):
    options = "input_ids, generation_config, model_kwargs"
    name = Name("transformers.generation.utils", "GenerationMixin._prefill", options)
    assert name.change() is None and expected in name._replace(**replacements).change()


def test_private_attributes_are_listed():
    own = {name for tree in TREES.values() for name in defined_names(tree)}
    used = {(name, f"{path}:{line}") for path, tree in TREES.items() for name, line in private_attributes(tree)}
    unlisted = sorted(f"{location} {name}" for name, location in used if name not in {*own, *LISTED, *NAMED_TUPLE})
    assert unlisted == []
    needed = {name for name, _ in used} | own
    assert [name.path for name in READ_NAMES if is_private(name.last) and name.last not in needed] == []


def test_overridden_private_names_are_listed():
    unlisted = {
        f"{cls.__module__}.{cls.__name__}.{name} ({base.__module__}.{base.__name__})"
        for cls in own_classes()
        for owner in cls.__mro__
        for name in vars(owner)
        if is_private(name)
        and owner.__module__.startswith("ngram_wdr_hf")
        and name not in MADE_BY_METACLASSES
        # Transformers caches properties on the class.
        and not name.endswith("_cached_value")
        for base in cls.__mro__
        if not base.__module__.startswith("ngram_wdr_hf") and name in vars(base) and name not in LISTED
    }
    assert unlisted == set()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_attributes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the private attributes that a module uses, also by `getattr`, and their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.attr, node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in GETTERS:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and is_private(name.value):
                yield name.value, node.lineno


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Yield the functions, classes and variables that a module defines, and the attributes it sets on `self`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        # `+=` does not define a name.
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for part in (part for target in targets for part in ast.walk(target)):
            if isinstance(part, ast.Name):
                yield part.id
            elif isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
                yield part.attr


def own_classes() -> Iterator[type]:
    for info in pkgutil.walk_packages([str(PACKAGE)], "ngram_wdr_hf."):
        if info.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(info.name)
        except ModuleNotFoundError:  # an optional package
            continue
        yield from (cls for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == info.name)
