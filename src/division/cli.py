"""The command `division`: train, compare, predict."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console

    from division.train import compare as comparing
    from division.train import models, run
    from division.train import predict as predicting
    from division.train.errors import RecipeError, SettingsError
    from division.train.files import write_json
    from division.train.settings import TrainSettings
except ModuleNotFoundError as error:
    print(f"division: package {error.name} is missing: pip install 'division[train]'", file=sys.stderr)
    raise SystemExit(2) from error

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
defaults = TrainSettings()
# A file or a pipe has no width of its own: wide enough for the tables.
stdout, stderr = Console(width=None if sys.stdout.isatty() else 160), Console(stderr=True)

Method = Annotated[str, typer.Option(help="a method's name: none, lossless, division, ...")]
Block = Annotated[int | None, typer.Option(help="block of the method's low-frequency part, in pixels a side")]
Bits = Annotated[int | None, typer.Option(help="bits a value of the method's codes")]
Model = Annotated[str, typer.Option(help=f"{', '.join(models.OWN)} or a torchvision classification network")]
Width = Annotated[int | None, typer.Option(help=f"channels of the first stage, {models.DEFAULT_WIDTH} by default")]
Data = Annotated[str, typer.Option(help="digits, photos, cifar10, cifar100 or imagenet")]
DataDir = Annotated[str | None, typer.Option(help="folder of cifar10, cifar100 or imagenet")]
Limit = Annotated[int | None, typer.Option(help="use at most so many images of each split")]
Augment = Annotated[bool | None, typer.Option("--augment/--no-augment", help="default: as the data set's papers do")]
Epochs = Annotated[int, typer.Option(help="passes over the training images")]
BatchSize = Annotated[int, typer.Option(help="images a step")]
Lr = Annotated[float, typer.Option(help="learning rate of the first step, cosine to 0")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the result to FILE as JSON")]


@app.command()
def train(
    method: Method = defaults.method,
    block: Block = None,
    bits: Bits = None,
    model: Model = defaults.model,
    width: Width = None,
    data: Data = defaults.data,
    data_dir: DataDir = None,
    limit: Limit = None,
    augment: Augment = None,
    epochs: Epochs = defaults.epochs,
    batch_size: BatchSize = defaults.batch_size,
    lr: Lr = defaults.lr,
    seed: Annotated[int, typer.Option(help="of weights, order and noise")] = defaults.seed,
    device: Device = defaults.device,
    out: Annotated[Path | None, typer.Option(help="run directory, by default a new one in runs/")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
    checkpoint_steps: Annotated[
        int | None, typer.Option(min=1, help="save every so many steps, not only epochs")
    ] = None,
    json: Json = None,
) -> None:
    """Train a network on images, its saved tensors compressed."""
    _check_target(json)
    settings = TrainSettings(
        method=method, block=block, bits=bits, model=model, width=width, data=data, data_dir=data_dir, limit=limit,
        augment=augment, epochs=epochs, batch_size=batch_size, lr=lr, seed=seed, device=device,
    )  # fmt: skip
    if resume and out is None:
        raise SettingsError(["--resume without --out: give the run directory to go on with"])
    settings.check()
    folder = out or Path("runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{settings.name}")
    summary = (run.resume if resume else run.start)(settings, folder, stdout, checkpoint_steps)
    stdout.print(
        f"top-1 {summary['top1']:.2f} %  raw {summary['raw_bytes']:,} bytes  packed {summary['packed_bytes']:,} bytes  "
        f"ratio {summary['ratio']:.2f}  {summary['images_per_s']:.0f} images/s",
        highlight=False,
    )
    stdout.print(f"run directory: {folder}", highlight=False, soft_wrap=True)
    _write(json, summary)


@app.command()
def compare(
    methods: Annotated[str, typer.Option(help="names, separated by commas")] = (
        "none,lossless,division,low-frequency,high-frequency,fixed-2"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="how many: 0, 1, ...")] = 3,
    model: Model = defaults.model,
    width: Width = None,
    data: Data = defaults.data,
    data_dir: DataDir = None,
    limit: Limit = None,
    augment: Augment = None,
    epochs: Epochs = defaults.epochs,
    batch_size: BatchSize = defaults.batch_size,
    lr: Lr = defaults.lr,
    device: Device = defaults.device,
    out: Annotated[Path, typer.Option(help="folder of the runs; those it holds already are used")] = Path(
        "runs/compare"
    ),
    json: Json = None,
) -> None:
    """Train with several methods side by side, paired by seed."""
    _check_target(json)
    base = TrainSettings(
        model=model, width=width, data=data, data_dir=data_dir, limit=limit, augment=augment, epochs=epochs,
        batch_size=batch_size, lr=lr, device=device,
    )  # fmt: skip
    names = [name.strip() for name in methods.split(",") if name.strip()]
    rows = comparing.compare(base, names, range(seeds), out, stdout)
    stdout.print(comparing.table(rows))
    _write(json, rows)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help=f"{', '.join(models.OWN)} or a torchvision classification network")],
    batch_size: BatchSize = 64,
    image_size: Annotated[int, typer.Option(help="height and width of the images")] = 224,
    method: Method = "division",
    block: Block = None,
    bits: Bits = None,
    table: Annotated[bool, typer.Option("--table", help="also print the account, tensor by tensor")] = False,
    json: Json = None,
) -> None:
    """Predict what a training step keeps in memory, without allocating it."""
    _check_target(json)
    row, report = predicting.predict(model, batch_size, image_size, method, block, bits)
    if table:
        print(report)
    stdout.print(
        f"{model}, batch {batch_size}, {image_size}x{image_size}: normal {_gib(row['normal_bytes'])}, "
        f"with {method} {_gib(row['packed_bytes'])}, ratio {row['ratio']:.2f}",
        highlight=False,
    )
    _write(json, row)


def main() -> None:
    """Runs the command; an error the user can act on is one line and exit code 2, any other keeps its traceback."""
    try:
        app(prog_name="division")
    except RecipeError as error:
        stderr.print(f"division: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)


def _gib(count: int) -> str:
    return f"{count / 2**30:.3f} GiB"


def _check_target(json: Path | None) -> None:
    if json is not None and (json.is_dir() or not json.absolute().parent.is_dir()):
        raise SettingsError([f"--json is {json}: expected a file name in an existing folder"])


def _write(json: Path | None, value: Any) -> None:
    if json is not None:
        write_json(json, value)
