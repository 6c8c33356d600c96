"""
Names of other libraries that their documentation does not promise: the package uses those listed here and no others. A
new release that lacks one of them breaks the package.
"""

import ast
import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

import ngram_wdr_hf

# As few of Transformers as there are now. One more needs a reason.
AT_MOST = 49
# By module: private names, names in modules without documentation, and public ones without.
NAMES = {
    "datasets.arrow_dataset": "_fingerprint",
    "datasets.fingerprint": "Hasher",
    "evaluate.module": "_compute _info",
    "torch._dynamo": "_dynamo mark_static_address",
    "torch.nn.modules.module": "_load_from_state_dict",
    "transformers.activations": "ACT2FN",
    "transformers.cache_utils": "_layer_type _quantize activate_past_recording crop get_mask_sizes lazy_initialization"
    " DynamicSlidingWindowLayer StaticSlidingWindowLayer",
    "transformers.cli.transformers": "app",
    "transformers.configuration_utils": "_attn_implementation",
    "transformers.conversion_mapping": "get_checkpoint_conversion_mapping register_checkpoint_conversion_mapping",
    "transformers.generation.configuration_utils": "_from_model_config",
    "transformers.generation.utils": "_prefill prepare_inputs_for_generation ALL_CACHE_NAMES",
    "transformers.hf_argparser": "HfArg",
    "transformers.initialization": "copy_ normal_ zeros_",
    "transformers.integrations.deepspeed": "is_deepspeed_zero3_enabled",
    "transformers.integrations.fsdp": "is_fsdp_managed_module",
    "transformers.modeling_utils": "_init_weights _is_stateful _keys_to_ignore_on_load_unexpected _no_split_modules"
    " _skip_keys_device_placement _tied_weights_keys",
    "transformers.models.auto": "configuration_auto modeling_auto",
    "transformers.models.auto.configuration_auto": "CONFIG_MAPPING_NAMES",
    "transformers.models.auto.modeling_auto": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
    " MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "transformers.models.blenderbot.modeling_blenderbot": "shift_tokens_right",
    "transformers.models.marian.modeling_marian": "MarianSinusoidalPositionalEmbedding",
    "transformers.models.mixtral.modeling_mixtral": "load_balancing_loss_func",
    "transformers.models.reformer.modeling_reformer": "_hash_vectors _init_attention_seed _init_feed_forward_seed"
    " get_start_idx reorder_cache LSHSelfAttention ReformerDynamicCache",
    "transformers.trainer": "_clip_grad_norm _load_from_checkpoint",
    "transformers.trainer_callback": "on_prediction_step",
    "transformers.trainer_utils": "EvalLoopOutput",
    "transformers.utils": "can_return_tuple",
    "trl.trainer.sft_trainer": "_metrics _total_train_tokens",
}
LISTED = {name for names in NAMES.values() for name in names.split()}
DOCUMENTED_MODULES = "accelerate.utils torch.utils.data transformers.generation transformers.modeling_outputs"
DOCUMENTED_MODULES = {*DOCUMENTED_MODULES.split(), "torch.nn.utils.rnn", "torch.overrides", "transformers.utils"}
LIBRARIES = ("accelerate", "datasets", "evaluate", "torch", "transformers", "trl")
# Public names of named tuples.
NAMED_TUPLE = {"_asdict", "_replace"}
SOURCES = [path.read_text(encoding="utf-8") for path in Path(ngram_wdr_hf.__file__).parent.rglob("*.py")]


@pytest.mark.parametrize(("module", "names"), NAMES.items())
def test_names_exist_and_are_used(module, names):
    source = inspect.getsource(import_module(module))
    for name in names.split():
        assert re.search(rf"\b{name}\b", source), f"{name} is gone"
        assert any(re.search(rf"\b{name}\b", text) for text in SOURCES), f"{name} is not used"


def test_the_number_of_names_does_not_grow():
    assert sum(len(names.split()) for module, names in NAMES.items() if module.startswith("transformers")) <= AT_MOST


def overridden_names() -> set[str]:
    """Return what the package's classes define although a class of another library, which they inherit from, does."""
    modules = [info.name for info in pkgutil.walk_packages(ngram_wdr_hf.__path__, "ngram_wdr_hf.")]
    members = [vars(import_module(name)).values() for name in modules if not name.endswith("__main__")]
    classes = {cls for values in members for cls in values if isinstance(cls, type) and cls.__module__ in modules}
    pairs = {
        (one, base) for cls in classes for one in cls.__mro__ for base in cls.__mro__ if one.__module__ in modules
    }
    return {name for one, base in pairs if base.__module__ not in modules for name in vars(one).keys() & vars(base)}


def test_no_other_names_are_used():
    imported, used, defined = set(), set(), set()
    for node in (node for source in SOURCES for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module.startswith(LIBRARIES):
            is_documented = "." not in node.module or node.module in DOCUMENTED_MODULES
            imported |= set() if is_documented else {alias.name for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute):
            is_own = isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
            (defined if is_own else used).add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            used.add(ast.unparse(node.args[1]).strip("'"))
    names = {*used - defined, *defined & overridden_names()} - NAMED_TUPLE - LISTED
    assert {name for name in names if re.fullmatch(r"_[^\W_]\w*", name)} == set() and imported - LISTED == set()
