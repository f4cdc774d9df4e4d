"""The command `tasklab merge`: one task vector of many."""

from __future__ import annotations

import functools
import json as writer
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

import tasklab
from tasklab import analyses, bench, tasks
from tasklab.analyses import merging
from tasklab.analyses.merging import registry
from tasklab.analyses.merging.registry import Method
from tasklab.cli import idle, networks, request
from tasklab.cli.parsing import Given, settings
from tasklab.cli.vectors import Vectors
from tasklab.errors import TasklabError, choose, path, real, shown, whole
from tasklab.exchange import places
from tasklab.isolation import isolated
from tasklab.models.zoo import closed, small, text_suite
from tasklab.progress import columns, shared, tell, track
from tasklab.tasks.suites import inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor


_IMAGES = 256  # of each task
_OR = ", or choose a --method that needs none"


@isolated
def merge(
    vector: tyro.conf.Positional[tuple[str, ...]],
    given: Annotated[Given, settings()],
    *,
    method: str = "arithmetic",
    alpha: float | str | None = None,
    option: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = (),
    search: bool = False,
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK=FOLDER")] = (),
    images: int | str | None = None,
    base: str | None = None,
    out: Path | str = "merged.safetensors",
    model_out: Path | str | None = None,
    rank: int | str | None = None,
    space: str | None = None,
    matrices: str | None = None,
    tables: str | None = None,
    unrelated: bool = False,
    json: bool = False,
) -> None:
    """Merge task vectors, and write the result to a file.

    Networks of any other architecture and adapters of peft are merged without --model, from their
    --base, into a whole network.

    Args:
        vector: Files or folders of task vectors or published checkpoints, names of imported ones,
            or TASK@METHOD or TASK@METHOD@SEED for runs of the store; TASK=VECTOR gives one its
            task.
        given: As in a chapter's first code cell.
        method: How to merge, e.g. ties, tsv_m, iso_c, or least_few, which is solved for on
            training images; see `tasklab list merges`.
        alpha: Coefficient of the result. By default the recommended one.
        option: Of the method, e.g. keep=0.3. By default the recommended ones.
        search: Choose coefficient and option on validation images of the tasks.
        data: A task's own folder of images, one folder a class, for methods that look at images
            and for --search. By default the suite's images.
        images: Training images of each task, for methods that look at them. By default 256.
        base: The checkpoint that published ones start from.
        out: File to write.
        model_out: Write the merged model as well, with a card: NAME.safetensors or NAME.pt for
            open_clip or timm, or a folder for transformers.
        rank: Write what was merged of such networks to the folder --out as an adapter of this rank.
        space: Of such networks or adapters, merge coordinates in a shared basis: knots (KnOTS), or
            for adapters core (Core Space). For arithmetic, ties, dare, tsv_m, iso_c, iso_cts.
        matrices: Pattern of names of such networks that are matrices of linear layers, although
            they look like embeddings.
        tables: Pattern of names that are none, although they have two axes: of embeddings.
        unrelated: Merge such networks also if they look like no change of their --base.
        json: Print JSON: out, model_out, model, weights (the hash of theta_0), method, options
            and their origin, norm and tensors of the result, and of each of vectors its
            vector, task, method, sha256, notes, norm and cosine; and the tasks whose heads are
            in it.
    """
    request.check_several("merge", vector)
    target, model_name = path("--out", out), given.get("model")
    method = registry.named(method)
    chosen = registry.method(method)
    count = whole("--images", _IMAGES if images is None else images, 1)
    options, kinds = _options(option, alpha), {"matrices": matrices, "tables": tables}
    start = [base] if base is not None else [] if method == "average" else [""]
    if model_name is None and all(map(networks.is_one, [*start, *vector])):
        _check_alone(search, data, model_out is not None)
        why = "networks are merged without --model, on the processor"
        idle.refuse({"images": images}, why)
        terms = (method, options, target, rank, space, kinds)
        networks.merge(base, vector, *terms, unrelated=unrelated, json=json)
        if note := idle.idle(given, why):
            tell(note)
        return
    if model_name is None and base is None:
        _check_models_known(vector)
    _check_only(rank=rank, space=space, **kinds, unrelated=unrelated or None)
    looks = _looks(method, options, search=search, data=data, images=images)
    files = {"--out": (target, places.VECTOR)}
    about_files: dict[str, Any] = {"files": files, "model_out": model_out, "looks": looks}
    asked = request.read_words("merge", vector, given, base=base, data=data, **about_files)
    for name in options:  # which imports torch
        choose(f"option of {method}", name, [one for one in chosen.options if one != chosen.needs])
    if looks:
        asked.check_tasks(_OR)
    of = f" of {model_name}" if model_name else ""
    asked.check(f"merging {len(vector)} task vectors{of} by {chosen.title}", images=looks)
    with asked.vectors(images=search) as vectors:
        _ = vectors.weights  # raises if they share no theta_0
        vectors.check_model_out()
        lab = None
        if looks:
            vectors.check_tasks(_OR)
            lab = vectors.lab()
        made = _searched if search else functools.partial(_merged, options=options, count=count)
        about = _written(made(chosen, method, vectors, lab), method, vectors, lab)
    told = _told(about, chosen, asked.outputs.model, linear=vectors.sources[0].linear)
    print(*([writer.dumps(about, indent=1)] if json else told), sep="\n")


def _written(
    merge: tuple[tasklab.TaskVector, dict[str, Any], str],
    method: str,
    vectors: Vectors,
    lab: bench.Lab | None,
) -> dict[str, Any]:
    """Write a merge (vector, options, their origin), and return the content of `--json`."""
    (result, plain, origin), chosen = merge, registry.method(method)
    rows, into = vectors.rows(result), vectors.outputs.model
    full = {x: y for x, y in {**chosen.options, **plain}.items() if x != chosen.needs}
    more = {"options": full, "vectors": rows}
    vectors.write(result, method, plain, vector="--out", lab=lab, more=more)
    return {
        "method": method,
        "weights": vectors.weights,
        "vectors": rows,
        "out": str(vectors.outputs.files["--out"]),
        "model_out": None if into is None else str(into.place),
        "model": vectors.sources[0].model,
        "options": plain,
        "origin": origin,
        "norm": result.norm(),
        "tensors": len(result),
        "heads": [*vectors.kept],
    }


def _check_alone(*given: object) -> None:
    """Raise for options of models of the package beside networks of any other architecture."""
    if any(given):
        raise TasklabError(
            "--search, --data and --model-out are for models of `tasklab list models`: give "
            "--model, or --alpha alone."
        )


def _check_only(**given: object) -> None:
    """Raise for an option of networks that are merged without `--model`."""
    if word := next((name for name, asked in given.items() if asked is not None), ""):
        raise TasklabError(f"--{word} is for networks that are merged without --model.")


def _looks(
    method: str, options: Mapping[str, Any], *, search: bool, data: object, images: object
) -> bool:
    """Return whether a merge looks at images; raise for options that are then idle.

    Args:
        method: The rule.
        options: Its given options, which a search would choose.
        search: Whether validation images choose them.
        data: Given folders of images.
        images: Given number of images.
    """
    if search and options:
        raise TasklabError(f"--search chooses {', '.join(options)}: leave one of the two out.")
    if not (search or registry.method(method).needs):
        why = f"{method} looks at no images, and --search is not given"
        idle.refuse({"data": data, "images": images}, why)
        return False
    if search or method in registry.SOLVED:
        by = "--search" if search else method
        idle.refuse({"images": images}, f"{by} has its own numbers of images")
    return True


def _check_models_known(vector: Sequence[str]) -> None:
    """Raise for a file that does not name its model."""
    if word := next(filter(networks.is_one, vector), ""):
        raise TasklabError(
            f"{word} does not tell of which model it is: give --model (`tasklab list models`), or "
            "for any other network the --base that it was fine-tuned from (average needs none)."
        )


def _told(
    about: dict[str, Any], chosen: Method, into: places.Target | None, *, linear: bool
) -> Iterator[str]:
    """Yield lines about the merge: its vectors, its rule and its output files."""
    rows, plain = about["vectors"], about["options"]
    lines = [[f"{chosen.title} ({chosen.source}) of {len(rows)} task vectors of {about['model']}"]]
    for row in rows:
        told = f"{row['task']}, {row['method']}, norm {row['norm']:.4g}"
        lines.append([f"  {row['vector']}", f"{told}, cosine with the result {row['cosine']:.3f}"])
    yield from columns(lines)
    yield from (f"  {x}" for x in shared({row["vector"]: row["notes"] for row in rows}))
    shortened = {name: f"{x:.4g}" if isinstance(x, float) else x for name, x in plain.items()}
    yield f"{', '.join(f'{name} {x}' for name, x in shortened.items())}: {about['origin']}"
    if "seed" in chosen.options:
        seed = plain.get("seed", chosen.options["seed"])
        yield f"drawn at random with seed {seed:g}, whatever the order of the vectors"
    model = "the linearized model" if linear else "the model itself"
    size = f"{about['tensors']} tensors, norm {about['norm']:.4g}"
    yield f"{size}, for {model}: written to {about['out']}"
    if about["heads"]:
        yield f"with the heads of {', '.join(about['heads'])}, which `tasklab evaluate` uses"
    if into is not None:
        library = places.library(into, about["model"])
        yield f"the merged model, for {library}: {into.place} and its card {into.beside['card']}"


def _searched(
    chosen: Method, method: str, vectors: Vectors, lab: bench.Lab | None
) -> tuple[tasklab.TaskVector, dict[str, Any], str]:
    """Return the best merge on validation images, its options, and where they come from."""
    assert lab is not None, "a search looks at images"
    of_task, trained = vectors.of_task(), vectors.method
    vector, choice = bench.contest.searched(lab, of_task, trained, method, vectors.heads(lab))
    found = {"alpha": choice["alpha"]}
    if choice["option"] is not None:
        found[chosen.searched] = choice["option"]
    counts = bench.contest.evaluator_of(lab, tuple(of_task))
    images = min(counts.count(task, "val") for task in of_task)
    origin = (
        f"the best on a smooth curve through {choice['looks']} evaluations on {images} validation "
        f"{inputs(lab.suite.name)} of each task"
    )
    return vector, {**chosen.fixed, **found}, origin


def _merged(
    chosen: Method,
    method: str,
    vectors: Vectors,
    lab: bench.Lab | None,
    *,
    options: dict[str, Any],
    count: int,
) -> tuple[tasklab.TaskVector, dict[str, Any], str]:
    """Return the merge at recommended or given options, these, and where they come from."""
    sources = vectors.sources
    known = len(sources) if "alpha" in options else _known(lab, vectors)
    usual = chosen.usual(known, options)
    plain = {**usual, **options}
    own = ", ".join(options)
    of = "" if isinstance(known, int) else f" of {known.relative:.3g} times the model's length"
    origin = f"recommended for {len(sources)} vectors{of}, from {registry.RECOMMENDED}"
    model = sources[0].model
    if "alpha" in usual.keys() - options.keys() - chosen.fixed.keys() and not _recorded(model):
        tell(
            f"No recorded setting supports a coefficient for {model}: "
            f"{usual['alpha']:.3g} is what small CLIPs of drawn pictures took. Check it on "
            "held-out images, or let validation images choose it (--search)."
        )
    origin = "the solution's own" if method in registry.SOLVED else origin
    if own:
        origin = f"{own} as given" + (f"; the rest {origin}" if usual.keys() - options else "")
    full = dict(plain)
    if method in registry.SOLVED:
        assert lab is not None, "it looks at images"
        of_task = vectors.of_task()
        merges = bench.Bench(bench.Given.of(lab, of_task, vectors.method))
        merges.tell_memory([method])
        full |= merges.statistics(method)
        return analyses.merging.merge(method, of_task, **full), plain, origin
    if chosen.needs:
        assert lab is not None, "it looks at images"
        if chosen.needs == merging.own.FEATURES:
            full[chosen.needs] = merging.own.features_of(lab.clip.encoder, _training(lab, count))
        else:
            full[chosen.needs] = _of_images(chosen.needs, vectors, lab, count)
    # a rule of one's own takes tasks; other names are for messages
    named = {one.task if chosen.digest else one.name: one.vector for one in sources}
    each = named if len(named) == len(sources) else [one.vector for one in sources]
    return analyses.merging.merge(method, each, **full), plain, origin


def _recorded(model: str) -> bool:
    """Return whether recorded runs support a coefficient for a model."""
    return small(model) and not closed(model) and not text_suite(model)


def _known(lab: bench.Lab | None, vectors: Vectors) -> merging.defaults.Known | int:
    """Return the vectors' lengths and number, or the number alone where no run was recorded."""
    sources = vectors.sources
    if not _recorded(sources[0].model):
        return len(sources)
    theta0 = vectors.encoder(lab).params
    return merging.defaults.Known.of([one.vector for one in sources], theta0, vectors.method)


def _of_images(needs: str, vectors: Vectors, lab: bench.Lab, count: int) -> Iterator[Any]:
    """Yield statistics of each task's training images at its own model."""
    encoder, data = lab.clip.encoder, tasks.drawn.images_of(lab.suite)
    evaluator = bench.Given.of(lab, {}, vectors.method, vectors.heads(lab)).evaluator
    sources = vectors.sources
    for one in track(sources, len(sources), "looking at images", unit="task"):
        many = min(count, data.size(one.task, "train"))
        x = data.load(one.task, "train", n=many, device=encoder.device).x
        head = evaluator.head(one.task)
        yield analyses.merging.of_images(needs, encoder, head, x, one.vector, linear=one.linear)


def _training(lab: bench.Lab, count: int) -> Callable[[str], Tensor]:
    """Return the function from a task to its first training images."""
    data, device = tasks.drawn.images_of(lab.suite), lab.clip.encoder.device
    return functools.cache(
        lambda task: (
            data.load(task, "train", n=min(count, data.size(task, "train")), device=device).x
        )
    )


def _options(words: Sequence[str], alpha: float | str | None) -> dict[str, Any]:
    """Return options of a method from words such as keep=0.3 or threshold=0.2,0.4, and alpha."""
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise TasklabError(f"--option is NAME=VALUE, e.g. keep=0.3, not {shown(word)}.")
        if name in options:
            raise TasklabError(f"--option {name} is given twice.")
        numbers = [real(f"--option {name}", part, -math.inf) for part in value.split(",")]
        options[name] = numbers[0] if len(numbers) == 1 else numbers
    if alpha is not None:
        if "alpha" in options:
            raise TasklabError("give --alpha or --option alpha=..., not both.")
        options["alpha"] = real("--alpha", alpha, -math.inf)
    return options
