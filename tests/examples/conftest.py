"""The modules of `examples/space` are imported as when its page is run."""

import sys

from tests.support.processes import ROOT

sys.path.insert(0, str(ROOT / "examples" / "space"))
