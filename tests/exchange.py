"""
Checkpoints that go from one version of Transformers to another: `save FOLDER` saves those of the fixtures under the
installed version, `load FOLDER` loads all that are there, by the package and by their own code, and compares.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers

from tests.support.processes import run_without_package

FIXTURES = Path(__file__).parent / "fixtures" / "version_0_2_0"
AUTO_CLASSES = {"bert": "AutoModelForMaskedLM", "marian": "AutoModelForSeq2SeqLM"}
IDS = [[3, 5, 7, 4, 5, 9], [2, 2, 8, 6, 10, 11]]
OWN_CODE = """
import json, torch, transformers
from pathlib import Path
from sys import argv
auto_class, ids = getattr(transformers, argv[2]), torch.tensor(json.loads(argv[3]))
model = auto_class.from_pretrained(argv[1], dtype=torch.float64, trust_remote_code=True).eval()
text = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
assert type(model).__module__.startswith("transformers_modules."), type(model)
print(json.dumps(model(input_ids=ids, **text).logits[:, -1].tolist()))
"""


def auto_class_of(folder: Path) -> str:
    return AUTO_CLASSES.get(folder.name, "AutoModelForCausalLM")


def load(folder: Path) -> transformers.PreTrainedModel:
    import ngram_wdr_hf  # noqa: F401 (registers the classes)

    return getattr(transformers, auto_class_of(folder)).from_pretrained(folder, dtype=torch.float64).eval()


def save(destination: Path) -> None:
    for folder in sorted(FIXTURES.iterdir()):
        saved = destination / transformers.__version__ / folder.name
        load(folder).save_pretrained(saved)
        shutil.copy(folder / "expected.json", saved)


@torch.no_grad()
def check(folder: Path, elsewhere: Path) -> None:
    """Check that a saved model has the expected logits, by the package and by its own code."""
    expected, model, ids = json.loads((folder / "expected.json").read_text()), load(folder), torch.tensor(IDS)
    assert type(model).__module__.startswith("ngram_wdr_hf.")
    text = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    logits = {"package": model(input_ids=ids, **text).logits[:, -1].tolist()}
    arguments = (str(folder), auto_class_of(folder), json.dumps(IDS))
    logits["own code"] = json.loads(run_without_package(OWN_CODE, elsewhere, *arguments)[-1])
    for way, values in logits.items():
        error = (torch.tensor(values) - torch.tensor(expected["logits"])).abs().max().item()
        print(f"saved under {folder.parent.name}, loaded under {transformers.__version__} by its {way}: ", end="")
        print(f"{folder.name}, largest difference {error:.1e}")
        assert error < 1e-10


if __name__ == "__main__":
    command, root = sys.argv[1], Path(sys.argv[2])
    if command == "save":
        save(root)
    else:
        for path in sorted(root.glob("*/*/config.json")):
            check(path.parent, root)
