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

from tests.support.processes import run_python, run_without_package

FIXTURES = Path(__file__).parent / "fixtures" / "version_0_2_0"
LOAD = """
import json, sys, torch, transformers
from pathlib import Path
auto_classes = {"bert": transformers.AutoModelForMaskedLM, "marian": transformers.AutoModelForSeq2SeqLM}
options = {"dtype": torch.float64, "trust_remote_code": sys.modules["ngram_wdr_hf"] is None}
for folder in map(Path, sys.argv[1:]):
    model = auto_classes.get(folder.name, transformers.AutoModelForCausalLM).from_pretrained(folder, **options).eval()
"""
SAVE = """
    model.save_pretrained(folder)
"""
LOGITS = """
    ids = torch.tensor([[3, 5, 7, 4, 5, 9], [2, 2, 8, 6, 10, 11]])
    text = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    print(json.dumps([type(model).__module__, model(input_ids=ids, **text).logits[:, -1].tolist()]))
"""


def main(command: str, root: Path) -> None:
    package = "import ngram_wdr_hf"
    if command == "save":
        saved = root / transformers.__version__
        shutil.copytree(FIXTURES, saved)
        run_python("-c", package + LOAD + SAVE, *sorted(saved.iterdir()))
        return
    folders = [path.parent for path in sorted(root.glob("*/*/config.json"))]
    outputs = {
        "ngram_wdr_hf.": run_python("-c", package + LOAD + LOGITS, *folders).splitlines(),
        "transformers_modules.": run_without_package(LOAD + LOGITS, root, *map(str, folders)),
    }
    for prefix, lines in outputs.items():
        for folder, line in zip(folders, lines, strict=True):
            module, logits = json.loads(line)
            assert module.startswith(prefix), module
            expected = json.loads((folder / "expected.json").read_text())["logits"]
            error = (torch.tensor(logits) - torch.tensor(expected)).abs().max().item()
            way = f"saved under {folder.parent.name}, loaded under {transformers.__version__} by {prefix}"
            print(f"{way}: {folder.name}, largest difference {error:.1e}")
            assert error < 1e-10


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
