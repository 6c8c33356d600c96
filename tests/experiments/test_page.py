"""Pages from results alone."""

from runner.page import write_page
from runner.tables import load_experiment

from tests.experiments.figures import ptb_results, rows_of


def test_page(tmp_path):
    experiment = load_experiment("ptb", "small")
    page = write_page(experiment, ptb_results(), tmp_path).read_text(encoding="utf-8")
    table = rows_of(page, "### Test")
    assert table["plain"] == ["3", "1,100", "", "102.00 ± 2.00", ""]
    assert table["WDR, N = 4"] == ["3", "1,100", "2.0", "103.00 ± 2.00", "98.00 ± 1.00"]
    assert "WDR, N = 2" not in table
    # Deviation 1, t = 4.3027: 4.3027 / √3 = 2.48.
    differences = rows_of(page, "Difference to the plain model")
    assert differences["WDR, N = 4"] == ["3", r"+1.00 \[+1.00, +1.00\]", r"−4.00 \[−6.48, −1.52\]"]
    assert rows_of(page, "### Over λ")["WDR, N = 4"] == ["0.4", "101.00 ± 0.00", "99.00 ± 0.00", "120.00 ± 0.00"]
    assert rows_of(page, "### Fitted weights")["WDR, N = 4"] == ["1.00 ± 0.00", "0.80 ± 0.00", "0.20 ± 0.00"]
    assert rows_of(page, "### Gradient diversity")["WDR, N = 4"] == ["3", "0.720 ± 0.010"]
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "ptb-small-ptb-lambda.png",
        "ptb-small-ptb-gradient-diversity.png",
    }
