"""Tables of experiments: which systems are trained, at which scale, by which commands."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.python_english import python_english

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "experiments" / "tables"
# The folder of cut texts, beside the runs.
CUT_TEXTS = "data"


@dataclass(frozen=True)
class Run:
    """
    One system of a group, trained with one seed.

    Args:
        group (`str`): The group: a dataset, or a dataset and a backbone.
        system (`str`): The system's name in the table.
        seed (`int`): The seed.
        folder (`Path`): The run's folder.
        options (`dict[str, Any]`): The options of the training script, without seed, data and folder.
        commands (`list[list[str]]`): The commands, each a script and its arguments: the training, then what follows.
        source (`dict[str, Any]`, *optional*):
            What else the figures depend on: the script, the names of the data files, and what follows the training.
    """

    group: str
    system: str
    seed: int
    folder: Path
    options: dict[str, Any]
    commands: list[list[str]]
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.group}/{self.system} seed {self.seed}"

    @property
    def glue_folder(self) -> Path:
        """The folder of what follows the training, fine-tuning on GLUE."""
        return self.folder.with_name(f"{self.folder.name}-glue")


@dataclass(frozen=True)
class Experiment:
    """
    A table at one scale.

    Args:
        table (`str`): Name of the table.
        scale (`str`): Name of the scale.
        content (`dict[str, Any]`): The table's file.
    """

    table: str
    scale: str
    content: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.table}-{self.scale}"

    @property
    def task(self) -> str:
        """`clm`, `nmt` or `mlm`."""
        return self.content["task"]

    @property
    def setup(self) -> dict[str, Any]:
        """The scale's part of the file."""
        return self.content["scales"][self.scale]

    @property
    def groups(self) -> dict[str, dict[str, Any]]:
        """The groups by name, each with `label`, `options`, `data` and `cut`, or `english`."""
        return self.setup["groups"]

    @property
    def systems(self) -> dict[str, dict[str, Any]]:
        """The systems at this scale by name."""
        systems = self.content["systems"]
        return {name: systems[name] for name in self.setup.get("systems", systems)}

    @property
    def without_heads(self) -> dict[str, str]:
        """Systems that need no run: their figures are those of another system without its heads."""
        return self.setup.get("without_heads", {})

    def label(self, system: str) -> str:
        return self.content["systems"][system]["label"]

    def select(self, only: Sequence[str] | None) -> list[tuple[str, str]]:
        """
        Return the groups and systems to train: all, or those named in `only`, as `system` or `group/system`. Raise an
        `InputError` for an unknown name.
        """
        pairs = [(group, system) for group in self.groups for system in self.systems]
        chosen = []
        for name in only or ():
            found = [pair for pair in pairs if name in (pair[1], "/".join(pair))]
            if not found:
                raise InputError(
                    f"`--only {name}` is no system of {self.table} at scale {self.scale}. Choose from "
                    f"{', '.join(self.systems)}, with or without a group ({', '.join(self.groups)}) before it, as "
                    "`group/system`."
                )
            chosen += found
        # A system without a run of its own stands for the one that has its figures.
        chosen = [(group, self.without_heads.get(system, system)) for group, system in chosen or pairs]
        return list(dict.fromkeys(chosen))

    def runs(
        self, folder: Path, data: Path | None, seeds: Sequence[int], only: Sequence[str] | None = None
    ) -> list[Run]:
        """Return the runs, seed by seed. `folder` is theirs, `data` that of the data files."""
        pairs = self.select(only)
        return [self.run(group, system, seed, folder, data) for seed in seeds for group, system in pairs]

    def run(self, group: str, system: str, seed: int, folder: Path, data: Path | None) -> Run:
        fields, place = self.systems[system], self.groups[group]
        options = merge(
            self.setup.get("options", {}),
            place.get("options", {}),
            fields.get("options", {}),
            self.setup.get("system_options", {}).get(system, {}),
        )
        path = folder / group / f"{system}-s{seed}"
        script, files = fields.get("script", self.content["script"]), self.files(group, folder, data)
        given = {**files, **options, "seed": seed, "output_dir": path}
        source = {"script": script, "data": {option: file.name for option, file in files.items()}}
        run = Run(group, system, seed, path, options, [command(script, given)], source)
        if "then" in self.setup:
            source["then"] = self.setup["then"]
            after = self.setup["then"]
            paths = {option: data / name for option, name in after["data"].items()} if data else {}
            given = {"model_name_or_path": path, **paths, **after["options"], "output_dir": run.glue_folder}
            run.commands.append(command(after["script"], given))
        return run

    def files(self, group: str, folder: Path, data: Path | None) -> dict[str, Path]:
        """
        Return the options for the data files of a group. Those with cut texts, or with English text that ships with
        Python, are in `folder`.
        """
        if "english" in self.groups[group]:
            counts = self.groups[group]["english"]
            return {f"{split}_file": english_path(folder, split, count) for split, count in counts.items()}
        if data is None:
            return {}
        cut = self.groups[group].get("cut", {})
        return {
            option: folder / CUT_TEXTS / f"{cut[option]}-lines-{name}" if option in cut else data / name
            for option, name in self.groups[group].get("data", {}).items()
        }

    def prepare(self, folder: Path, data: Path | None) -> None:
        """
        Check that all data files exist, and write the cut texts and the English ones. Raise an `InputError` for a
        missing file.
        """
        after = self.setup.get("then", {}).get("data", {})
        for place in self.groups.values():
            needed = {**place.get("data", {}), **after}
            if needed and data is None:
                raise InputError(
                    f"`--data` is required at scale {self.scale}: give a folder with {', '.join(needed.values())}."
                )
            for name in needed.values():
                if not (data / name).exists():
                    raise InputError(f"`--data {data}` has no {name}: check the folder, or add the file.")
            for option, lines in place.get("cut", {}).items():
                name = place["data"][option]
                cut_text(data / name, lines, folder / CUT_TEXTS / f"{lines}-lines-{name}")
            for split, count in place.get("english", {}).items():
                write_english(split, count, english_path(folder, split, count))


def table_names() -> list[str]:
    return sorted(path.stem for path in TABLES.glob("*.yaml"))


def load_experiment(table: str, scale: str) -> Experiment:
    """Return a table at a scale. Raise an `InputError` if it has no such scale."""
    content = yaml.safe_load((TABLES / f"{table}.yaml").read_text(encoding="utf-8"))
    if scale not in content["scales"]:
        raise InputError(f"`--scale {scale}` is unknown: choose from {', '.join(content['scales'])}.")
    return Experiment(table, scale, content)


def merge(*parts: dict[str, Any]) -> dict[str, Any]:
    """Return options in which later ones replace earlier ones; the lists of `config_overrides` are joined."""
    options: dict[str, Any] = {}
    for part in parts:
        both = {**options, **part}
        overrides = [*options.get("config_overrides", []), *part.get("config_overrides", [])]
        options = {**both, "config_overrides": overrides} if overrides else both
    return options


def command(script: str, options: dict[str, Any]) -> list[str]:
    """Return a script and its options as the words of a command line."""
    words = [str(ROOT / script)]
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(str(item).lower() if isinstance(item, bool) else str(item) for item in values)]
    return words


def cut_text(source: Path, lines: int, target: Path) -> None:
    """Write the first lines of a text. A text that is there already stays, as runs may be reading it."""
    if target.exists():
        return
    with source.open(encoding="utf-8") as text:
        first = [line for _, line in zip(range(lines), text, strict=False)]
    write_text("".join(first), target)


def english_path(folder: Path, split: str, count: int) -> Path:
    return folder / CUT_TEXTS / f"{count}-documents-english-{split}.txt"


def write_english(split: str, count: int, target: Path) -> None:
    """Write the first documents of a split of Python's English, unless they are there already."""
    if not target.exists():
        write_text("\n".join(python_english()[split][:count]["text"]), target)


def write_text(text: str, target: Path) -> None:
    """Write a text file at once, with its folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(target)
