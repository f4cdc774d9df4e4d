"""Files of torch.save are read as they were written, and hostile ones do nothing."""

import io
import os
import pickle
import struct
import subprocess
import sys
import time
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tasklab.errors import TasklabError
from tasklab.storage import pickles
from tasklab.storage.pickles import Inert
from tasklab.storage.state_dicts import averaged, beside, modules, place, tensors, vector
from tasklab.storage.torch_files import read
from tests.helpers import flip, refuses


class Net(nn.Module):
    """Parameters, buffers of both kinds, a list, something shared, and an option that is off."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.rest = nn.ModuleList([nn.LayerNorm(4), nn.Sequential(OrderedDict(act=nn.GELU()))])
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.listed = nn.ParameterList([torch.ones(2), torch.zeros(1, 0)])
        self.register_buffer("mean", torch.arange(3))
        self.register_buffer("mask", torch.ones(5), persistent=False)
        self.register_parameter("bias", None)
        self.note = {"a set": {1, 2}, "a type": torch.float16, "a function": os.path.join}


def save(thing, path, **options):
    torch.save(thing, path, **options)
    return path


STATE = {
    "float": torch.randn(3, 4), "half": torch.randn(5).half(),
    "bfloat": torch.randn(2, 2).bfloat16(), "double": torch.randn(2).double(),
    "whole": torch.arange(4), "truth": torch.tensor([True, False]), "scalar": torch.tensor(3.5),
    "none": torch.zeros(0, 3), "turned": torch.randn(4, 3).T, "part": torch.arange(10.0)[2:9:3],
}  # fmt: skip


def same(found, own):
    assert list(found) == list(own)
    assert all(x.dtype == own[n].dtype and torch.equal(x, own[n]) for n, x in found.items())


@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_is_read_as_pytorch_reads_it(tmp_path, zipped):
    path = save(OrderedDict(STATE), tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    same(tensors(read(path)), STATE)
    same(tensors(read(path)), torch.load(path, weights_only=True))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_state_dict_of_a_pickled_module(tmp_path, zipped, protocol):
    net = Net()
    options = {"_use_new_zipfile_serialization": zipped, "pickle_protocol": protocol}
    found = read(save(net, tmp_path / "net.pt", **options))
    same(tensors(found), net.state_dict())
    kinds = {name: module.name.rpartition(".")[2] for name, module in modules(found)}
    assert kinds == {name: type(module).__name__ for name, module in net.named_modules()}
    note = found.state["note"]
    assert isinstance(note["a type"], Inert) and note["a function"].name.endswith(".join")


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_a_plain_pickle_is_read(tmp_path, protocol):
    """As the code of task arithmetic wrote encoders, and loads them by `torch_load_old`."""
    net, path = Net(), tmp_path / "net.pt"
    net.tied = net.first.weight
    for thing, own in ((net, net.state_dict()), (STATE, STATE)):
        path.write_bytes(pickle.dumps(thing, protocol))
        same(tensors(read(path)), own)


class Traced(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.rest = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))

    def forward(self, x):
        return self.rest(self.first(x))


def test_an_archive_of_torchscript_is_read(tmp_path):
    """As OpenAI's CLIP is: its code is compressed, its numbers are not."""
    net, path = Traced().eval(), tmp_path / "net.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated
        torch.jit.trace(net, torch.ones(2, 2)).save(str(path))
    with zipfile.ZipFile(path) as archive:
        assert any(entry.compress_type == zipfile.ZIP_DEFLATED for entry in archive.infolist())
    found, own = tensors(read(path)), net.state_dict()
    same({name: found[name] for name in own}, own)
    assert found.keys() == own.keys()
    assert {name for name, _ in modules(read(path))} == {name for name, _ in net.named_modules()}


@pytest.mark.parametrize("zip_format", [True, False])
def test_protocols_0_and_1(tmp_path, zip_format):
    """PyTorch reads what it wrote in protocol 1, and not what it wrote in 0."""
    path, options = tmp_path / "x.pt", {"_use_new_zipfile_serialization": zip_format}
    same(tensors(read(save(STATE, path, pickle_protocol=1, **options))), STATE)
    save(STATE, path, pickle_protocol=0, **options)
    refuses("is not read: its pickle_protocol is 0", read, path)
    with pytest.raises(Exception, match=r"tuple|Weights only load failed"):
        torch.load(path)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("zip_format", [True, False])
def test_types_without_storages_of_their_own(tmp_path, zip_format):
    path, options = tmp_path / "x.pt", {"_use_new_zipfile_serialization": zip_format}
    kinds = torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2
    for dtype in (*kinds, torch.complex64, torch.complex128):
        own = torch.arange(6.0).reshape(2, 3).to(dtype)
        found = tensors(read(save({"x": own, "part": own[1, 1:]}, path, **options)))
        assert found["x"].dtype == dtype and found["x"].tolist() == own.tolist()
        assert found["part"].tolist() == own[1, 1:].tolist()
    few = torch._empty_affine_quantized([2], scale=1, zero_point=0, dtype=torch.qint8)
    save({"x": few}, path, **options)
    refuses(r"type .*'torch\.QInt8Storage' \(quantised\): give the checkpoint", read, path)


ENTRIES = ("state_dict", "model", "image_encoder")  # these may stand beside others
ENTRIES += ("weights", "encoder", "net", "module", "ema", "model_state")


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_only_entry_with_tensors_is_taken(tmp_path, entry):
    own = nn.Linear(2, 2).state_dict()
    inside = {"epoch": 3, entry: own, "optimizer": {"state": {0: {"step": torch.ones(1)}}}}
    for thing in (inside, [own], (own, {"lr": 1.0}), {entry: nn.Linear(2, 2)}):
        assert list(tensors(read(save(thing, tmp_path / "x.pt")))) == list(own)


def test_what_is_averaged_is_named_and_not_taken(tmp_path):
    own, other = nn.Linear(2, 2).state_dict(), nn.Linear(2, 2).state_dict()
    optimizer = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 1.0}]}
    lists = {"decay": 0.9, "shadow_params": list(other.values())}
    for first, more, named in (
        ("state_dict", {"state_dict_ema": other}, ["state_dict_ema"]),
        ("net", {"net_ema": other, "optimizer": optimizer}, ["net_ema"]),
        ("model", {"ema": lists, "step": torch.tensor(3)}, ["ema"]),
        ("model", {"callbacks": {"EMA": {"weights": other}}}, ["callbacks"]),
        ("model", {"optimizer": {**optimizer, "ema": list(other.values())}}, ["optimizer"]),
        ("model", {"averaged_model": {"state_dict": other}, "best": 3}, ["averaged_model"]),
        ("weights", {"optimizer": optimizer, "best_acc": torch.tensor(0.9)}, []),
        ("module", {"optim": optimizer, "lr_scheduler": {"x": torch.ones(1)}}, []),
    ):
        stored = read(save({first: own, **more}, tmp_path / "x.pt"))
        assert all(torch.equal(x, own[name]) for name, x in tensors(stored).items())
        assert beside(stored) == named and place(stored) == first
    stored = read(save({**own, "ema_state": other}, tmp_path / "x.pt"))
    assert list(tensors(stored)) == list(own) and beside(stored) == ["ema_state"]
    names = ("model_ema", "ModelEMA", "n_averaged", "swa_model", "avg_model")
    assert all(map(averaged, names)) and not any(map(averaged, ("exp_avg", "schema", "weights")))


def test_a_task_vector_of_other_code_is_found(tmp_path):
    numbers = {"a": torch.ones(2)}
    for thing in ({"vector": numbers}, {"task_vector": numbers}, Holder(), {"vector": Holder()}):
        found = vector(read(save(thing, tmp_path / "x.pt")))
        (name,) = found
        assert name in {"a", "weight"} and found[name].tolist() == [1, 1]
    for thing in (numbers, {"a": 1}, nn.Linear(2, 2), {"one_vector": numbers, "vector": numbers}):
        assert vector(read(save(thing, tmp_path / "x.pt"))) is None


class Holder:
    """As TaskVector is pickled."""

    def __init__(self):
        self.vector = {"weight": torch.ones(2)}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("plain", [True, False])
def test_arrays_of_numpy_are_tensors(tmp_path, protocol, plain):
    large = np.arange(pickles.MOST_CODE // 4, dtype=np.float32)  # more bytes than instructions
    state = {n: x.numpy() for n, x in STATE.items() if n != "bfloat"} | {"large": large}
    state |= {"columns": np.asfortranarray(large[:6].reshape(2, 3)), "again": large}
    path = tmp_path / "x.pkl"
    if plain:
        path.write_bytes(pickle.dumps({"model": state, "__author__": "x"}, protocol))
    else:
        save({"model": state, "__author__": "x"}, path, pickle_protocol=protocol)
    found = tensors(read(path))
    same(found, {name: torch.from_numpy(x.copy()) for name, x in state.items()})
    assert found["again"].data_ptr() == found["large"].data_ptr()  # as it was saved


def test_arrays_that_are_hostile_or_not_read(tmp_path):
    whole = pickle.dumps({"w": np.ones((2, 3), np.float32)}, 3)
    path = tmp_path / "x.pkl"
    for old, new, told in (
        (b"K\x02K\x03\x86", b"K\x02K\x04\x86", "has 24 bytes"),
        (b"K\x02K\x03\x86", b"J\xff\xff\xff\xffK\x03\x86", "has the shape"),
        (b"X\x01\x00\x00\x00<", b"X\x01\x00\x00\x00>", "'w' .'numpy.*_reconstruct'"),
    ):
        assert old in whole
        path.write_bytes(whole.replace(old, new))
        refuses(told, lambda: tensors(read(path)))
    # one text that 9,999 calls encode takes its memory once
    text = "\xff" * 5_000_000
    code = b"\x80\x02" + _global("_codecs.encode") + b"q\x010"
    code += b"X" + struct.pack("<I", 2 * len(text)) + text.encode() + b"q\x020"
    code += b"X\x06\x00\x00\x00latin1q\x030" + b"](" + b"h\x01h\x02h\x03\x86R" * 9999 + b"e."
    path.write_bytes(code)
    one, *others = read(path)
    assert one == text.encode("latin1") and all(other is one for other in others)


def test_compiled_modules_are_the_modules_within(tmp_path):
    net = Net()
    same(tensors(read(save(torch.compile(net), tmp_path / "x.pt"))), net.state_dict())
    holder = nn.Module()
    holder.inner = torch.compile(net)
    found = tensors(read(save({"model": holder, "epoch": 1}, tmp_path / "x.pt")))
    same(found, {f"inner.{name}": x for name, x in net.state_dict().items()})


def test_a_linear_head_beside_a_network_is_told(tmp_path):
    net, head = Net().state_dict(), nn.Linear(2, 2).state_dict()
    found = read(save({"backbone": net, "probe": head, "epoch": 3}, tmp_path / "x.pt"))
    same(tensors(found), net)
    assert beside(found) == ["probe"]


def test_what_is_there_instead_of_weights_is_said(tmp_path):
    numbers = {"a": torch.ones(2)}
    for thing, what in (
        ({"student": numbers, "teacher": numbers}, r"a dict with .*'student' \(dict\), 'teacher'"),
        ({"task_vector": numbers}, r"'task_vector' \(dict\)"),  # a difference is no network
        (Holder(), r"'[\w.]*Holder' with the entries 'vector' \(dict\)"),
        ({"a": np.array(["x"])}, r"'a' \('numpy.*_reconstruct'\)"),
        ({"a\x1b[31m\nb": 1, "c" * 10**6: 2}, r"'a\\x1b\[31m\\nb' \(int\)\. Save"),
        ({"c" * 999: 2}, r"'c{76}\.\.\. \(int\)\. Save"),
        *((odd, "no tensors by name") for odd in ([1, 2], {"a": 1}, torch.ones(2), None)),
    ):
        with pytest.raises(TasklabError, match=what) as caught:
            tensors(read(save(thing, tmp_path / "x.pt")))
        assert "torch.save(model.state_dict(), ...)" in str(caught.value)


def test_what_shares_memory_does_so_again(tmp_path):
    base = torch.arange(6.0)
    path = save({"two": [base[:3], base[3:]]}, tmp_path / "x.pt")
    one, two = read(path)["two"]
    assert one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()
    assert torch.equal(two, base[3:])


def test_pytorchs_own_readers_are_not_asked(tmp_path, monkeypatch):
    path = save(STATE, tmp_path / "x.pt")
    for library, name in ((torch, "load"), (pickle, "load"), (pickle, "loads")):
        monkeypatch.setattr(library, name, lambda *_: pytest.fail("it was"))
    monkeypatch.setattr(pickle, "Unpickler", None)
    assert tensors(read(path)).keys() == STATE.keys()


# What a file can ask for. `{mark}` is the file that would be there if anything had run.

Run = Callable[[Path], bytes]


class Reduce:
    """An object that pickles as a call."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


def _dumps(thing, protocol=2):
    return pickle.dumps(thing, protocol)


def _short(text):
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _touch(mark):
    return Reduce(os.system, (f"touch {mark}",))


CODES: dict[str, Run] = {
    "a call of os.system": lambda mark: _dumps(_touch(mark)),
    "in protocol 0": lambda mark: _dumps(_touch(mark), 0),
    "in protocol 4": lambda mark: _dumps(_touch(mark), 4),
    "eval": lambda mark: _dumps(Reduce(eval, (f"open({str(mark)!r}, 'w')",))),
    "exec of a program": lambda mark: _dumps(Reduce(exec, (f"open({str(mark)!r}, 'w')",))),
    "a process": lambda mark: _dumps(Reduce(subprocess.Popen, (["touch", str(mark)],))),
    "a new object": lambda mark: (
        b"\x80\x02csubprocess\nPopen\n(" + _short("touch") + _short(str(mark)) + b"lt\x85\x81."
    ),
    "in a dictionary of weights": lambda mark: _dumps(
        OrderedDict(weight=torch.ones(2).numpy(), bias=_touch(mark))
    ),
    "as a key": lambda mark: _dumps({_touch(mark): 1}),
    "a state that is set": lambda mark: _dumps(Reduce(Reduce, (), {"parts": _touch(mark)})),
    "the instruction INST": lambda mark: b"(" + f"S'touch {mark}'\n".encode() + b"ios\nsystem\n.",
    "the instruction OBJ": lambda mark: b"(cos\nsystem\n" + f"S'touch {mark}'\n".encode() + b"o.",
    "a name on the stack": lambda mark: b"".join(
        (b"\x80\x04", _short("os"), _short("system"), b"\x93", _short(f"touch {mark}"), b"\x85R.")
    ),
    "a function fetched by another": lambda mark: _dumps(
        Reduce(getattr, (Reduce(__import__, ("os",)), "system"))
    ),
    "what a call returned is called": lambda mark: (
        b"cbuiltins\ngetattr\n(cos\n__dict__\nS'get'\ntR" + f"(S'touch {mark}'\ntR.".encode()
    ),
    "attributes of a class are set": lambda mark: (
        b"\x80\x02ccollections\nOrderedDict\n}" + _short("__init__") + b"cos\nsystem\nsb."
    ),
    "attributes of slots are set": lambda mark: (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}" + _short("__code__") + b"Ns\x86b."
    ),
    "a module is imported": lambda mark: b"cnever_imported\nmark\n)R.",
}


def zipped(path, code, storages=None):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", code)
        for key, content in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", content)
        archive.writestr("archive/version", "3\n")
    return path


def streamed(path, code, after=b""):
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    parts = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, system)]
    path.write_bytes(b"".join([*parts, code, after or pickle.dumps([], 2)]))
    return path


@pytest.fixture
def mark(tmp_path, monkeypatch):
    path = tmp_path / "executed"
    module = f"open({str(path)!r}, 'w')\nmark = print\n"
    (tmp_path / "never_imported.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield path
    assert not path.exists()
    assert "never_imported" not in sys.modules


@pytest.mark.parametrize("write", [zipped, streamed])
@pytest.mark.parametrize("what", CODES)
def test_nothing_is_executed(what, write, mark, tmp_path):
    path = write(tmp_path / "hostile.pt", CODES[what](mark))
    try:
        tensors(read(path))
    except TasklabError as error:
        assert str(error).count("\n") == 0
    assert not mark.exists()


def test_the_payloads_do_run_where_pickle_reads_them(tmp_path):
    """So that the test above is one."""
    for what in ("a call of os.system", "in protocol 4", "the instruction INST", "as a key"):
        mark = tmp_path / what.replace(" ", "-")
        code = CODES[what](mark)
        done = [sys.executable, "-c", f"import pickle; pickle.loads({code!r})"]
        subprocess.run(done, check=False, timeout=60, capture_output=True)
        assert mark.exists(), what


class Armed(nn.Linear):
    """A module that acts when it is restored."""

    def __setstate__(self, state):
        Path(state["mark"]).touch()
        super().__setstate__(state)


def test_a_modules_own_setstate_is_not_called(tmp_path, mark):
    armed = Armed(2, 3)
    armed.mark = str(mark)
    found = tensors(read(save(armed, tmp_path / "armed.pt")))
    assert torch.equal(found["weight"], armed.weight)


def test_odd_states_are_no_modules(tmp_path):
    inside = b"}(" + _short("_parameters") + b"K\x05" + _short("_modules") + b"]"
    inside += _short("_buffers") + b"}(K\x01K\x02uu"
    for state, told in (
        *((s, "") for s in (b"K\x05", b"]", b"(K\x01K\x02t", b"}(K\x07K\x08u", b"N", b"cos\nx\n")),
        (inside, r" with the entries '_parameters' \(int\)"),
    ):
        path = zipped(tmp_path / "x.pt", b"\x80\x02cnet\nNet\n)\x81" + state + b"b.")
        refuses(r"no tensors by name .* 'net\.Net'" + told, lambda: tensors(read(path)))  # noqa: B023


# Tensors that are not what they claim to be.
class Stored:
    """Stands for a storage in a pickle."""

    def __init__(self, *identity):
        self.identity = identity


class Writer(pickle.Pickler):
    def persistent_id(self, thing):
        return thing.identity if isinstance(thing, Stored) else None


def tensor_file(
    path, *, offset=0, size=(4,), stride=(1,), count=4, kind=torch.FloatStorage, key="0",
    content=bytes(16), old=False, more=(),
):  # fmt: skip
    identity = ("storage", kind, key, "cpu", count, *([None] if old else []))
    view = (Stored(*identity), offset, size, stride, False, OrderedDict(), *more)
    rebuilt = Reduce(torch._utils._rebuild_tensor_v2, view)
    buffer = io.BytesIO()
    Writer(buffer, 2).dump({"x": rebuilt})
    if old:
        after = pickle.dumps(["0"], 2) + struct.pack("<q", 4) + content
        return streamed(path, buffer.getvalue(), after)
    return zipped(path, buffer.getvalue(), {"0": content})


@pytest.mark.parametrize("old", [False, True])
def test_a_tensor_as_it_should_be(tmp_path, old):
    content = struct.pack("<4f", 1, 2, 3, 4)
    path = tensor_file(tmp_path / "x.pt", size=(2, 2), stride=(1, 2), content=content, old=old)
    assert tensors(read(path))["x"].tolist() == [[1, 3], [2, 4]]
    refuses("negated", read, tensor_file(tmp_path / "y.pt", old=old, more=({"neg": True},)))


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    "claims",
    [
        {"size": (5,)}, {"size": (2, 2), "stride": (4, 1)}, {"offset": 1}, {"offset": 10**18},
        {"offset": -1}, {"offset": True}, {"size": (-1,)}, {"stride": (-1,)},
        {"size": (10**12,), "stride": (0,)}, {"size": (1 << 62, 1 << 62), "stride": (0, 0)},
        {"size": (1 << 100,)}, {"size": (2.0,)}, {"size": (1,) * 1000, "stride": (1,) * 1000},
        {"size": (1,) * 2, "stride": (1,)}, {"size": [4]}, {"count": 5}, {"count": 10**15},
        {"count": -4}, {"count": "4"}, {"key": "1"}, {"key": ("0",)}, {"key": "../version"},
        {"kind": torch.DoubleStorage}, {"kind": dict}, {"content": bytes(12)},
    ],
    ids=str,
)  # fmt: skip
def test_tensors_beyond_their_memory_are_refused(tmp_path, claims, old):
    began = time.monotonic()
    with pytest.raises(TasklabError, match=r"(not a whole|repeats its 4).*Nothing in it was"):
        read(tensor_file(tmp_path / "x.pt", old=old, **claims))
    assert time.monotonic() - began < 2


def test_a_tensor_that_repeats_itself_is_refused(tmp_path):
    large = torch.ones(1).expand(10**12)
    path = save({"x": large}, tmp_path / "x.pt")
    refuses(r"repeats its 1 stored numbers \(expand\)", read, path)
    few = torch.arange(3.0)[:, None].expand(3, 600_000)
    refuses("copy more than any network needs", lambda: read(save({"x": few, "y": few.mT}, path)))
    own = {"row": torch.arange(3.0).expand(4, 3), "bias": torch.zeros(1).expand(5)}
    for kind in (torch.float32, torch.float8_e5m2):
        found = tensors(read(save({n: x.to(kind).expand_as(x) for n, x in own.items()}, path)))
        assert all(torch.equal(found[n].float(), x) for n, x in own.items())


def test_two_claims_on_one_storage_must_agree(tmp_path):
    def one(kind, count):
        stored = Stored("storage", kind, "0", "cpu", count)
        call = (stored, 0, (1,), (1,), False, OrderedDict())
        return Reduce(torch._utils._rebuild_tensor_v2, call)

    buffer = io.BytesIO()
    Writer(buffer, 2).dump([one(torch.FloatStorage, 4), one(torch.LongStorage, 2)])
    refuses("two types", read, zipped(tmp_path / "x.pt", buffer.getvalue(), {"0": bytes(16)}))


# Bombs: little in the file, much in memory or time.
def doubled():
    shared = nn.Identity()
    for _ in range(60):
        outer = nn.Module()
        outer.a = outer.b = shared
        shared = outer
    return shared


def within_itself():
    inner = nn.Module()
    inner._modules["again"] = inner
    return inner


def a_dictionary_within_itself():
    one = {}
    one["model"] = {"model": one}
    return one


ENDLESS = (
    (doubled, "modules"),
    (within_itself, "endlessly"),
    (a_dictionary_within_itself, "no te"),
)


@pytest.mark.parametrize(("make", "told"), ENDLESS)
def test_what_is_endless_is_given_up(tmp_path, make, told):
    began = time.monotonic()
    refuses(told, lambda: tensors(read(save(make(), tmp_path / "x.pt"))))
    assert time.monotonic() - began < 5


def test_more_instructions_than_a_network_needs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pickles, "MOST_CODE", 1 << 17)
    code = b"\x80\x02" + b"N0" * (1 << 16) + b"N."
    for write in (zipped, streamed):
        refuses("longer than", read, write(tmp_path / "x.pt", code))


@pytest.mark.parametrize(
    "code",
    [
        b"\x80\x02\x8b\xff\xff\xff\x7f1.",  # an integer of 2 GB
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f1.",  # a text of 9 EB
        b"\x80\x02X\xff\xff\xff\xffabc.", b"\x80\x02I" + b"9" * 100_000 + b"\n.",
        b"\x80\x02r\xff\xff\xff\xff.", b"\x80\x02h\x07.", b"\x80\x02K\x01K\x02.", b"\x80\x02t.",
        b"\x80\x02(.", b"\x80\x02K\x01K\x02a.", b"\x80\x02K\x01K\x02K\x03s.",
        b"\x80\x02K\x01K\x02R.", b"\x80\x02K\x01Q.", b"\x80\x02)Q.", b"\x80\x02", b"", b"\xff",
        b"\x80\x02\x82\x01.",  # the registry of extensions
        b"\x80\x05\x97.",  # memory outside of the file
    ],
)  # fmt: skip
def test_broken_instructions_are_one_error(tmp_path, code):
    for write in (zipped, streamed):
        refuses("not a whole file of torch.save", read, write(tmp_path / "x.pt", code))


def _mark(*parts):
    return b"(" + b"".join(parts) + b"t"


def _int(number):
    coded = pickle.encode_long(number)
    return b"\x8b" + struct.pack("<i", len(coded)) + coded


def _global(name):
    module, _, attribute = name.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def _module(*entries):
    return _global("net.Net") + b")\x81}(" + b"".join(entries) + b"ub"


STORED = (_short("storage"), _global("torch.FloatStorage"), _short("0"), _short("cpu"), b"K\x04")
STORED = _mark(*STORED)
REBUILD = _global("torch._utils._rebuild_tensor_v2")
VIEW = (b"K\x00", b"K\x04\x85", b"K\x01\x85", b"\x89", b"N")
TENSOR = REBUILD + _mark(STORED + b"Q", *VIEW) + b"R"
LONG, TEXT = b"]" + b"(" + b"N" * 20_000 + b"e", _short("a" * 10**6)
PAIRS = b"](" + b"".join(b"M" + struct.pack("<H", k) + b"N\x86" for k in range(20_000)) + b"e"
NUMBERED = b"}(" + b"".join(b"M" + struct.pack("<H", k) + b"N" for k in range(20_000)) + b"u"
NAMED = b"".join(_short(str(k)) + b"h\x01" for k in range(20_000))

# what is memoised as 1 and as 2, and what is then done with them again and again
REPEATED: dict[str, tuple[bytes, bytes, bytes]] = {
    "a name on the stack": (TEXT, _short("b"), b"h\x01h\x02\x93"),
    "a shorter one": (_short("a" * 1000), _short("b"), b"h\x01h\x02\x93"),
    "torch.Size": (LONG, _global("torch.Size"), b"h\x02h\x01\x85R"),
    "a set": (LONG, _global("builtins.set"), b"h\x02h\x01\x85R"),
    "an OrderedDict": (PAIRS, _global("collections.OrderedDict"), b"h\x02h\x01\x85R"),
    "an object of old": (
        _mark(_global("a.B"), b"N" * 20_000), _global("copyreg._reconstructor"), b"h\x02h\x01R",
    ),
    "attributes of two kinds": (NUMBERED + b"}\x86", b"N", b"ca\nb\nh\x01b"),
    "rows of a tensor": (TENSOR, _global("collections.OrderedDict"), b"h\x02h\x01\x85R"),
    "elements of a tensor": (TENSOR, _global("torch.Size"), b"h\x02h\x01\x85R"),
    "letters of a text": (TEXT, _global("torch.Size"), b"h\x02h\x01\x85R"),
    "arguments of a tensor": (_mark(STORED + b"Q", *VIEW, b"N" * 20_000), REBUILD, b"h\x02h\x01R"),
    "tensors": (_mark(STORED + b"Q", *VIEW), REBUILD, b"h\x02h\x01R"),
}  # fmt: skip


@pytest.mark.parametrize("what", REPEATED)
def test_copying_again_and_again_is_refused(tmp_path, what):
    one, two, again = REPEATED[what]
    code = b"\x80\x02" + one + b"q\x010" + two + b"q\x020](" + again * 110_000 + b"e."
    path = zipped(tmp_path / "x.pt", code, {"0": bytes(16)})
    refuses(r"copy more than|the name of|a list of|is made of|index", read, path)


NUMBERS = b"](" + b"".join(b"M" + struct.pack("<H", k) for k in range(60_000)) + b"e"
DOUBLED = b"](K\x01q\x05" + b"h\x05h\x05\x86q\x05" * 40

# what stops PyTorch 2.15's restricted reader for more than a minute, or ends it
STOPPERS: dict[str, bytes] = {
    **{
        f"deep {what}, key and value": b"}(" + deep + b"K\x02" + _short("x") + deep + b"u"
        for what, deep in {
            "tuples": b"K\x01" + b"\x85" * 200_000,
            "lists": b"(" * 50_000 + b"l" * 50_000,
            "calls": b"cos\nx\n" * 20_000 + b")R" + b"\x85R" * 19_999,
        }.items()
    },
    "a value that doubles": DOUBLED + b"}" + _short("x") + b"h\x05se",
    "a key that doubles": DOUBLED + b"}h\x05Nse",
    "a set that doubles": b"\x8f(K\x01q\x05" + b"h\x05h\x05\x86q\x05" * 40 + b"h\x05\x90",
    "many names": b"](" + b"".join(b"cx%d\ny\n" % k for k in range(150_000)) + b"e",
    **{
        f"{name}, again and again": b"]("
        + (PAIRS if name == "collections.OrderedDict" else NUMBERS)
        + b"q\x01"
        + _global(name)
        + b"q\x02"
        + b"h\x02h\x01\x85R" * 110_000
        + b"e"
        for name in (
            "builtins.set", "collections.Counter", "torch.Tensor", "collections.OrderedDict",
        )
    },
    "memory without numbers": b"](J\xff\xff\xff\x7fq\x01"
    + _global("builtins.bytearray")
    + b"q\x02"
    + b"h\x02h\x01\x85R" * 1000
    + b"e",
}  # fmt: skip


def test_wrappers_of_tensors_are_not_gone_through(tmp_path):
    wrapped = b"h\x01N)\x87q\x02" + b"0h\x01Nh\x02\x87q\x02" * 300
    code = _global("torch._tensor._rebuild_from_type_v2") + b"q\x010" + wrapped
    code = b"\x80\x02" + code + b"0](" + b"h\x01h\x02R" * 50_000 + b"e."
    began = time.process_time()
    assert len(read(zipped(tmp_path / "x.pt", code))) == 50_000
    assert time.process_time() - began < 3


def test_long_numbers_cost_nothing(tmp_path):
    """They can be hashed and multiplied, but in no time, and have no decimals after the 4300th."""
    number, path = _int(1 << 4_000_000), tmp_path / "x.pt"
    module = _module(_short("_parameters"), b"}" + number + TENSOR + b"s")
    for code, told in (
        (number + b"q\x010" + b"}(" + b"h\x01N" * 200_000 + b"u.", "no tensors by name"),
        (number + b"q\x010" + b"}h\x01" + TENSOR + b"s.", "no tensors by name"),
        (module + b".", r"no tensors by name in it, but a 'net\.Net'"),
        (STORED.replace(b"K\x04t", number + b"t") + b"Q.", "not as many elements"),
    ):
        zipped(path, b"\x80\x02" + code, {"0": bytes(16)})
        refuses(told, lambda: tensors(read(path)))


def _nested(part, inside):
    return _module(_short("_modules"), b"}" + _short("n" * part) + inside + b"s")


@pytest.mark.parametrize(
    "code",
    [
        _nested(100_000, _module(_short("_modules"), b"}(" + NAMED + b"u")),
        _nested(999, _module(_short("_parameters"), b"}(" + NAMED + b"u")),
        _module(_short("_parameters"), b"}(" + NAMED + b"u")
        + b"q\x020"
        + _module(_short("_modules"), b"}(" + NAMED.replace(b"h\x01", b"h\x02") + b"u"),
    ],
    ids=["a long name", "names", "shared"],
)  # fmt: skip
def test_names_and_shared_parameters_are_not_multiplied(tmp_path, code):
    code = b"\x80\x02" + TENSOR + b"q\x010" + code + b"."
    found = read(zipped(tmp_path / "x.pt", code, {"0": bytes(16)}))
    refuses(r"more modules|a name of|no tensors by name", tensors, found)


def test_a_buffer_is_compared_with_names_alone(tmp_path):
    """And not with tensors, nor with each of a list."""
    passing = _short("_non_persistent_buffers_set") + b"](" + TENSOR + _short("6") + b"e"
    named = b"K\x05" + TENSOR + _short("6") + TENSOR
    code = _module(_short("_buffers"), b"}(" + named + b"u", passing)
    found = tensors(read(zipped(tmp_path / "x.pt", b"\x80\x02" + code + b".", {"0": bytes(16)})))
    assert list(found) == ["5"]


def _file_of_a_storage():
    _, (content,) = torch.ones(3)._typed_storage().__reduce__()
    return content


def _embedded(content):
    content = b"B" + struct.pack("<I", len(content)) + content
    return _global("torch.storage._load_from_bytes") + content + b"\x85R"


def test_files_within_a_plain_pickle_are_storages(tmp_path):
    path, whole = tmp_path / "x.pt", _file_of_a_storage()
    view = _mark(_embedded(whole), b"K\x00", b"K\x03\x85", b"K\x01\x85", b"\x89", b"N")
    made = REBUILD + view + b"R"
    path.write_bytes(b"\x80\x03}" + _short("x") + made + b"s.")
    assert tensors(read(path))["x"].tolist() == [1, 1, 1]
    module = io.BytesIO()
    torch.save(nn.Linear(1, 1), module, _use_new_zipfile_serialization=False)
    claims = whole.replace(b"K\x03Nt", b"J\xff\xff\xff\x7fNt")
    nested = b"\x80\x03" + _embedded(whole) + b"."
    assert claims != whole
    for content, match in (
        (module.getvalue(), "something else"),
        (nested, "something else"),
        (b"\x80\x03cos\nsystem\n" + _short("exit") + b"\x85R.", "something else"),
        (claims, "larger than the file"),
        (whole[:-4], "cut off"),
        (b"", "ends before|exhausted"),
        (b"\x80\x02" + b"N0" * (1 << 20) + b"N.", "longer than"),
    ):
        path.write_bytes(b"\x80\x03" + _embedded(content) + b".")
        refuses(match, read, path)
    path.write_bytes(b"\x80\x03" + _embedded(whole).replace(b"B", b"X", 1) + b".")
    refuses("no bytes|decode", read, path)


def test_files_within_a_plain_pickle_share_its_budget(tmp_path, monkeypatch):
    path, whole = tmp_path / "x.pt", _file_of_a_storage()
    path.write_bytes(b"\x80\x03](" + _embedded(whole) * 1500 + b"e.")
    with monkeypatch.context() as patch:
        patch.setattr(pickles, "MOST_CODE", pickles.MOST_CODE // 8)
        refuses("longer than", read, path)
    size = 2 * pickles.MOST_CODE  # of numbers, which are no instructions
    large = b"B" + struct.pack("<I", size) + whole.ljust(size, b"\0")
    load = _global("torch.storage._load_from_bytes") + b"q\x020"
    path.write_bytes(
        b"\x80\x03" + large + b"q\x010" + load + b"](" + b"h\x02h\x01\x85R" * 9999 + b"e."
    )
    one, *others = read(path)  # the same bytes are read once
    assert all(other is one for other in others)


# Archives that are not what torch.save writes.
def test_files_cut_off_anywhere_are_one_error(tmp_path):
    for zip_format in (True, False):
        path, cut = tmp_path / "x.pt", tmp_path / "cut.pt"
        whole = save(Net(), path, _use_new_zipfile_serialization=zip_format).read_bytes()
        for end in [*range(0, len(whole), max(1, len(whole) // 40)), len(whole) - 1]:
            cut.write_bytes(whole[:end])
            refuses(r"cut\.pt", read, cut)


def test_a_changed_number_is_noticed(tmp_path):
    path = save({"model": Net(), "x": torch.full((1000,), 7.0)}, tmp_path / "x.pt")
    flip(path, path.read_bytes().index(struct.pack("<f", 7.0) * 500))
    refuses("CRC", read, path)


def test_compressed_and_doubled_entries_are_refused(tmp_path):
    code = pickle.dumps({"x": 1}, 2)
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", code)
        archive.writestr("archive/data/0", bytes(10**7))
    refuses("compressed", read, path)
    np.savez(path.with_suffix(".npz"), weight=np.ones(2))
    refuses(r"an \.npz of numpy", read, path.with_suffix(".npz"))
    with zipfile.ZipFile(path, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("archive/data.pkl", code)
        archive.writestr("archive/data.pkl", code)
    refuses("same name", read, path)


def test_entries_that_share_their_bytes_are_refused(tmp_path):
    """A list of a thousand entries of one megabyte, all of them the same bytes."""
    path = zipped(tmp_path / "x.pt", pickle.dumps({}, 2), {"0": bytes(1 << 20)})
    with zipfile.ZipFile(path, "a") as archive:
        entry = archive.getinfo("archive/data/0")
        for key in range(1, 1000):
            again = zipfile.ZipInfo(f"archive/data/{key}")
            for part in ("CRC", "compress_size", "file_size", "header_offset", "compress_type"):
                setattr(again, part, getattr(entry, part))
            archive.filelist.append(again)
            archive.NameToInfo[again.filename] = again
        archive._didModify = True
    refuses("larger than the file", read, path)


def test_odd_archives_say_what_they_are(tmp_path):
    inner = save(STATE, tmp_path / "inner.pt")
    nested = tmp_path / "nested.zip"
    with zipfile.ZipFile(nested, "w") as archive:
        archive.write(inner, "inner.pt")
    refuses("unpack it first", read, nested)
    large = zipped(tmp_path / "large.pt", pickle.dumps({}, 2))
    with zipfile.ZipFile(large, "a") as archive:
        archive.writestr("archive/byteorder", b"big")
    refuses("big-endian", read, large)
    path = zipped(tmp_path / "x.pt", pickle.dumps({}, 2))
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\x05\x06") + 19] = 0xFF  # of where its list of entries begins
    path.write_bytes(content)
    refuses("not a whole file", read, path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>Virus scan warning</html>", "a web page"),
        (b"\xef\xbb\xbf\n <html>", "a web page"),
        (b"\x1f\x8b\x08\0" + bytes(20), "gzip"),
        (b"7z\xbc\xaf'\x1c", "7z"),
        (b"\0" * 257 + b"ustar\0", "tar archive"),
        (b"\x93NUMPY\x01\0", "an array of numpy"),
        (b"Lorem ipsum", r"not a file of torch\.save\. Save"),
        *((begin, r"file of torch\.save") for begin in (b"x", b"\x80", b"PK\x03\x04")),
        (None, "there is no file"),
    ],
)
def test_what_another_file_is_is_said(tmp_path, content, what):
    path = tmp_path / "x.pt"
    if content is not None:
        path.write_bytes(content)
    refuses(what, read, path)
