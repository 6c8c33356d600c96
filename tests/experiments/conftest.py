"""The experiments are scripts: their modules are beside them."""

import sys

from tests.support.processes import ROOT

sys.path.insert(0, str(ROOT / "experiments"))
