"""Files of vectors: each tells the weights it starts from, and any change of one is found."""

import random
import shutil

import pytest

from tasklab import checkpoints
from tasklab.errors import TasklabError
from tasklab.exchange import exporting, importing, merged, reading
from tasklab.models import loading
from tasklab.storage.store import Store
from tasklab.taskvector import Base, TaskVector
from tests.helpers import refuses
from tests.vectors import noise

MODEL = "mini_xs"


@pytest.fixture(scope="module")
def encoder():
    return loading.load(MODEL).encoder


def base_of(encoder):
    return Base(encoder.name, encoder.init, encoder.weights_hash)


def vector(encoder, base=None):
    return noise(encoder.params, 3, base=base)


def saved(encoder, folder):
    return vector(encoder, base_of(encoder)).save(folder / "saved.safetensors")


def merge(encoder, folder):
    source = merged.named_source(str(saved(encoder, folder)), Store(folder / "store"), MODEL)
    out = folder / "merged.safetensors"
    merged.write_vector(out, 2 * source.vector, [source, source], {"method": "sum", "options": {}})
    return out


def exported(encoder, folder, run_of):
    whole = exporting.write_run(run_of()[0], encoder, folder / "export")
    return shutil.copy(whole / exporting.VECTOR_FILE, folder / "alone.safetensors")


@pytest.mark.parametrize("make", [saved, merge, exported])
def test_flipped_bits_and_zeroed_pages_are_found(encoder, tmp_path, run_of, make):
    file = make(encoder, tmp_path, *[run_of] * (make is exported))
    assert reading.contents(file, MODEL).vector.base[:3] == base_of(encoder)[:3]
    content, rng = file.read_bytes(), random.Random(0)
    for turn in range(8):
        damaged = bytearray(content)
        place = rng.randrange(len(content) - 40_000, len(content) - 4096)
        if turn % 2:
            damaged[place : place + 4096] = bytes(4096)
        else:
            damaged[place] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        refuses("damaged|whole safetensors", checkpoints.load, file, encoder)
    file.write_bytes(content)
    assert reading.contents(file, MODEL).vector is not None


def test_a_saved_vector_of_another_start_is_refused(encoder, tmp_path):
    other = base_of(encoder)._replace(weights="0" * 64)
    file = vector(encoder, other).save(tmp_path / "other.safetensors")
    mine, store = saved(encoder, tmp_path), Store(tmp_path / "store")
    for read in (lambda: checkpoints.load(file, encoder), lambda: importing.compare(file, MODEL)):
        refuses("starts from the weights 000000000000", read)
    one, two = (merged.named_source(str(path), store, MODEL) for path in (mine, file))
    assert (one.weights, two.weights) == (encoder.weights_hash, "0" * 64)
    refuses("same pre-trained model", merged.together, [one, two])
    small = vector(encoder, base_of(encoder)._replace(model="mini_s"))
    smaller = str(small.save(tmp_path / "small.safetensors"))
    refuses("'mini_s'", merged.named_source, smaller, store, MODEL)
    odd = vector(encoder, base_of(encoder)._replace(init="\x1b[2J"))
    with pytest.raises(TasklabError, match="does not say what it is"):
        reading.contents(odd.save(tmp_path / "odd.safetensors"), MODEL)
    plain = vector(encoder).save(tmp_path / "plain.safetensors")  # of which nothing is known
    assert merged.named_source(str(plain), store, MODEL).weights is None


def test_a_saved_vector_tells_how_it_was_fine_tuned(encoder, tmp_path):
    tuned = base_of(encoder)._replace(method="linearized")
    file, store = vector(encoder, tuned).save(tmp_path / "one.safetensors"), Store(tmp_path / "s")
    assert merged.named_source(str(file), store, MODEL).linear
    assert merged.named_source(str(file), store).model == MODEL  # it tells its model
    assert importing.add(store, file, MODEL, "Signs")["method"] == "linearized"
    assert not merged.named_source(str(saved(encoder, tmp_path)), store, MODEL).linear
    strange = vector(encoder, tuned._replace(method="magic")).save(tmp_path / "odd.safetensors")
    refuses("does not say what it is", reading.contents, strange, MODEL)


def test_a_saved_vector_without_tensors_is_one_sentence(tmp_path):
    TaskVector({}).save(tmp_path / "empty.safetensors")
    place = str(tmp_path / "empty.safetensors")
    store = Store(tmp_path / "store")
    refuses("is a task vector without tensors", merged.named_source, place, store, MODEL)
