"""The command `division`: train, compare, predict, bench, doctor."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

try:
    import torch
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    import division
    from division import doctor as examining
    from division import methods
    from division.bench import kernels, rows, show, step
    from division.bench import settings as benching
    from division.train import compare as comparing
    from division.train import language, models, optimizers, run
    from division.train import predict as predicting
    from division.train import settings as training
    from division.train.errors import RecipeError, SettingsError
    from division.train.files import append_json_line, write_json
    from division.train.settings import TrainSettings
except ModuleNotFoundError as error:
    print(f"division: package {error.name} is missing: pip install 'division[train]'", file=sys.stderr)
    raise SystemExit(2) from error

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
bench = typer.Typer(no_args_is_help=True, help="Measure speed and memory; docs/benchmarks.md says how.")
app.add_typer(bench, name="bench")
defaults = TrainSettings()
RATES = ", ".join(f"{kind().lr} of {name}" for name, kind in optimizers.KINDS.items())
COMPARED = "none,lossless,division,low-frequency,high-frequency,fixed-2"
# A file or a pipe has no width of its own: wide enough for the tables.
stdout, stderr = Console(width=None if sys.stdout.isatty() else 160), Console(stderr=True)

Method = Annotated[
    str,
    typer.Option(
        help=f"{', '.join(methods.names())}; some take a setting or another's name, such as comet-0.05 or swap-division"
    ),
]
Block = Annotated[int | None, typer.Option(help="block of the method's low-frequency part, in pixels a side")]
Bits = Annotated[int | None, typer.Option(help="bits a value of the method's codes")]
Model = Annotated[
    str,
    typer.Option(
        help=f"{', '.join(models.OWN)} or a torchvision classification network; with text {' or '.join(language.NETWORKS)}"
    ),
]
Width = Annotated[
    int | None,
    typer.Option(help=f"channels of the first stage: {models.DEFAULT_WIDTH}, with text {language.DEFAULT_WIDTH}"),
]
Data = Annotated[str, typer.Option(help="digits, photos, cifar10, cifar100, imagenet or text")]
DataDir = Annotated[str | None, typer.Option(help="folder of cifar10, cifar100 or imagenet")]
Limit = Annotated[int | None, typer.Option(help="use at most so many images or sequences of each split")]
Augment = Annotated[bool | None, typer.Option("--augment/--no-augment", help="default: as the data set's papers do")]
Epochs = Annotated[int, typer.Option(help="passes over the training split")]
BatchSize = Annotated[int, typer.Option(help="images or sequences a step")]
Lr = Annotated[float | None, typer.Option(help=f"of the first step, cosine to 0; default: {RATES}")]
Optimizer = Annotated[str, typer.Option(help=" or ".join(optimizers.KINDS))]
Grow = Annotated[int, typer.Option(help="let the batch grow to so many times its size, in the memory that was freed")]
Amp = Annotated[str, typer.Option(help="none, or bf16 or fp16 for autocast")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the result to FILE as JSON")]
Rows = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="write the rows to FILE, one JSON object a line")
]
Record = Annotated[bool, typer.Option("--record", help="keep the rows in the source checkout: benchmarks/results")]
Quick = Annotated[bool, typer.Option("--quick", help="tiny tensors and few runs: shows that it works, not how fast")]
Repeats = Annotated[int | None, typer.Option(help="runs of each, at most")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"division {division.__version__}, torch {torch.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """What comes before every command."""
    examining.check_environment()


@app.command()
def train(
    context: typer.Context,
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
    optimizer: Optimizer = defaults.optimizer,
    lr: Lr = None,
    amp: Amp = defaults.amp,
    grow: Grow = defaults.grow,
    seed: Annotated[int, typer.Option(help="of weights, order and noise")] = defaults.seed,
    device: Device = defaults.device,
    out: Annotated[Path | None, typer.Option(help="run directory, by default a new one in runs/")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out, by its own settings")] = False,
    checkpoint_steps: Annotated[
        int | None, typer.Option(min=1, help="save every so many steps, not only epochs")
    ] = None,
    json: Json = None,
) -> None:
    """Train a network on images or text, its saved tensors compressed."""
    _check_target(json)
    settings = TrainSettings(
        method=method, block=block, bits=bits, model=model, width=width, data=data, data_dir=data_dir, limit=limit,
        augment=augment, epochs=epochs, batch_size=batch_size, optimizer=optimizer, lr=lr, amp=amp, grow=grow,
        seed=seed, device=device,
    )  # fmt: skip
    if resume:
        if out is None:
            raise SettingsError(["--resume without --out: give the run directory to go on with"])
        given = {name: getattr(settings, name) for name in _given(context) if hasattr(settings, name)}
        settings = dataclasses.replace(training.read(out / run.CONFIG), **given)
    settings.check()
    folder = out or Path("runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{settings.name}")
    try:
        summary = (run.resume if resume else run.start)(settings, folder, stdout, checkpoint_steps)
    except KeyboardInterrupt:
        again = ["division", "train", "--resume", "--out", str(folder)]
        again += ["--checkpoint-steps", str(checkpoint_steps)] if checkpoint_steps else []
        begun = (folder / run.CONFIG).exists()
        _stopped(f"the run is in {folder}, go on with: {shlex.join(again)}" if begun else "nothing was written")
    unit = "images" if "images_per_s" in summary else "sequences"
    density = f"{summary['bits_per_byte']:.3f} bits a byte  " if "bits_per_byte" in summary else ""
    stdout.print(
        f"top-1 {summary['top1']:.2f} %  {density}raw {summary['raw_bytes']:,} bytes  packed {summary['packed_bytes']:,} bytes  "
        f"ratio {summary['ratio']:.2f}  {summary[f'{unit}_per_s']:.0f} {unit}/s",
        highlight=False,
    )
    stdout.print(f"run directory: {folder}", highlight=False, soft_wrap=True)
    _write(json, summary)


@app.command()
def compare(
    compared: Annotated[
        str, typer.Option("--methods", help="names, separated by commas", show_default=COMPARED.replace(",", ", "))
    ] = COMPARED,
    seeds: Annotated[int, typer.Option(min=1, help="how many: 0, 1, ...")] = 3,
    model: Model = defaults.model,
    width: Width = None,
    data: Data = defaults.data,
    data_dir: DataDir = None,
    limit: Limit = None,
    augment: Augment = None,
    epochs: Epochs = defaults.epochs,
    batch_size: BatchSize = defaults.batch_size,
    optimizer: Optimizer = defaults.optimizer,
    lr: Lr = None,
    amp: Amp = defaults.amp,
    grow: Grow = defaults.grow,
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
        batch_size=batch_size, optimizer=optimizer, lr=lr, amp=amp, grow=grow, device=device,
    )  # fmt: skip
    names = [name.strip() for name in compared.split(",") if name.strip()]
    try:
        rows = comparing.compare(base, names, range(seeds), out, stdout)
    except KeyboardInterrupt:
        _stopped(f"the runs are in {out}, the same command goes on")
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
    table: Annotated[bool, typer.Option("--table", help="also print the report, tensor by tensor")] = False,
    json: Json = None,
) -> None:
    """Predict what a training step keeps in memory, without allocating it."""
    _check_target(json)
    row, report = predicting.predict(model, batch_size, image_size, method, block, bits)
    if table:
        print(report)
    stdout.print(predicting.sentence(row), highlight=False)
    _write(json, row)


@bench.command("kernels")
def bench_kernels(
    codecs: Annotated[str | None, typer.Option(help=f"some of {', '.join(benching.NAMES)}; all by default")] = None,
    bits: Annotated[str | None, typer.Option(help="only codes of these widths, such as 2,4")] = None,
    shapes: Annotated[str | None, typer.Option(help="such as 32x64x56x56,64x512x7x7")] = None,
    dtypes: Annotated[str | None, typer.Option(help=f"some of {', '.join(benching.DTYPES)}")] = None,
    layouts: Annotated[str | None, typer.Option(help=f"some of {', '.join(benching.LAYOUTS)}")] = None,
    device: Device = defaults.device,
    body: Annotated[str | None, typer.Option(help="on a CPU: reference, portable, avx2 or avx512")] = None,
    repeats: Repeats = None,
    quick: Quick = False,
    json: Rows = None,
    record: Record = False,
) -> None:
    """Encode and decode of each codec, against a copy of the same tensor."""
    usual = benching.QUICK_KERNELS if quick else benching.KernelSettings(shapes=benching.default_shapes(device))
    given = {
        "codecs": benching.listed(codecs), "bits": benching.numbers(bits, "bits"), "shapes": benching.shapes(shapes),
        "dtypes": benching.listed(dtypes), "layouts": benching.listed(layouts), "device": device, "body": body,
        "repeats": repeats,
    }  # fmt: skip
    chosen = benching.changed(usual, given)
    count = len(kernels.cases(chosen))
    _bench("kernels", lambda tell: kernels.measure(chosen, tell), count, [show.kernels], json, record, quick)


@bench.command("step")
def bench_step(
    models: Annotated[str | None, typer.Option(help="such as resnet18,resnet50")] = None,
    image_size: Annotated[int | None, typer.Option(help="height and width of the images")] = None,
    batch_size: Annotated[int | None, typer.Option(help="images a step")] = None,
    methods: Annotated[str | None, typer.Option(help=f"names, such as {', '.join(benching.METHODS)}")] = None,
    device: Device = defaults.device,
    amp: Annotated[str | None, typer.Option(help="none, or bf16 for autocast")] = None,
    channels_last: Annotated[bool, typer.Option("--channels-last", help="weights and images in channels_last")] = False,
    tf32: Annotated[bool, typer.Option("--tf32", help="let a GPU round factors of float32 products to TF32")] = False,
    repeats: Repeats = None,
    peak: Annotated[bool, typer.Option("--peak/--no-peak", help="measure the most memory a step holds")] = True,
    quick: Quick = False,
    json: Rows = None,
    record: Record = False,
) -> None:
    """Training steps of each method, against plain PyTorch."""
    wanted = benching.workloads(benching.listed(models), image_size, batch_size, device=device, quick=quick)
    given = {"methods": benching.listed(methods), "amp": amp, "channels_last": channels_last, "tf32": tf32}
    chosen = benching.changed(
        benching.QUICK_STEP if quick else benching.StepSettings(),
        {"workloads": tuple(benching.changed(w, given) for w in wanted), "repeats": repeats, "peak": peak},
    )
    chosen.check()
    count = step.units(chosen)
    by = ("device_name", "model", "image_size", "batch_size", "method", "amp", "layout", "tf32")
    _bench("step", lambda tell: step.measure(chosen, tell), count, [show.step, show.peaks], json, record, quick, by)


@bench.command("fidelity")
def bench_fidelity(
    models: Annotated[str | None, typer.Option(help=f"some of {', '.join(benching.TASKS)}; all by default")] = None,
    methods: Annotated[str | None, typer.Option(help="names, such as division,fixed-4,released")] = None,
    seeds: Annotated[str | None, typer.Option(help="of weights and data, such as 0,1,2")] = None,
    steps: Annotated[
        str | None, typer.Option(help="training steps before gradients are compared, such as 0,300")
    ] = None,
    draws: Annotated[int | None, typer.Option(help="gradients of each method, which differ by its noise")] = None,
    device: Device = defaults.device,
    quick: Quick = False,
    json: Rows = None,
    record: Record = False,
) -> None:
    """Gradients of each method beside exact ones, at initialisation and after training."""
    given = {
        "models": benching.listed(models), "methods": benching.listed(methods), "draws": draws, "device": device,
        "seeds": benching.numbers(seeds, "seed"), "steps": benching.numbers(steps, "steps"),
    }  # fmt: skip
    chosen = benching.changed(benching.QUICK_FIDELITY if quick else benching.FidelitySettings(), given)
    chosen.check()
    from division.bench import fidelity

    by = ("device_name", "model", "method", "seed", "steps")
    _bench(
        "fidelity",
        lambda tell: fidelity.measure(chosen, tell),
        fidelity.units(chosen),
        [show.fidelity],
        json,
        record,
        quick,
        by,
    )


@bench.command("hook")
def bench_hook(quick: Quick = False, json: Rows = None, record: Record = False) -> None:
    """What the way into autograd costs without a codec."""
    from division.bench import hook

    _bench(
        "hook",
        lambda tell: ({**rows.provenance(), **row} for row in hook.measure(quick=quick)),
        1,
        [show.hook],
        json,
        record,
        quick,
    )


@app.command()
def doctor(json: Json = None) -> None:
    """Say which body each op uses on each device here, and what could be better."""
    _check_target(json)
    found = examining.examine()
    for table in show.doctor(found):
        stdout.print(table)
    for line in found["advice"] or ["nothing to improve"]:
        stdout.print(line, highlight=False, soft_wrap=True)
    _write(json, found)


def main() -> None:
    """Runs the command; an error the user can act on is one line and exit code 2, any other keeps its traceback."""
    try:
        app(prog_name="division")
    except RecipeError as error:
        stderr.print(f"division: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)


def _given(context: typer.Context) -> list[str]:
    """The parameters that stand on the command line, by name."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def _stopped(said: str) -> NoReturn:
    """Says where things stand after Ctrl-C, and ends with the exit code of one."""
    stderr.print(f"division: stopped; {said}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(130)


Tell = Callable[[int, str], object]


def _bench(
    name: str, measure: Callable[[Tell], Iterator[rows.Row]], units: int,
    tables: list[Callable[[list[rows.Row]], Table | None]], json: Path | None, record: bool, quick: bool,
    by: tuple[str, ...] = ("device_name",),
) -> None:  # fmt: skip
    """Measures, shows the rows, and writes them: those so far to `json` at any time, all to the checkout at the end."""
    _check_target(json)
    if record and quick:
        raise SettingsError(["--record with --quick: quick figures mean nothing, leave one of the two out"])
    target = rows.results(name) if record else None
    if json is not None:
        rows.write(json, [])
    found: list[rows.Row] = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(name, total=units)
        for row in measure(lambda done, what: bar.update(task, completed=done, description=what)):
            found.append(row)
            if json is not None:
                append_json_line(json, row)
    for table in filter(None, (make(found) for make in tables)):
        stdout.print(table)
    if target is not None:
        rows.replace(target, found, by)
        stdout.print(f"recorded: {target}", highlight=False, soft_wrap=True)


def _check_target(json: Path | None) -> None:
    if json is not None and (json.is_dir() or not json.absolute().parent.is_dir()):
        raise SettingsError([f"--json is {json}: expected a file name in an existing folder"])


def _write(json: Path | None, value: Any) -> None:
    if json is not None:
        write_json(json, value)
