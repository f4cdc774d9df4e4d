"""Read open_clip's and timm's vision transformers as one shape: names of weights, and settings.

`tower` returns a `Tower`, or `None` for networks with more in them. `tasklab.tuning.dual` computes
features and their tangent from it, `tasklab.models.inference` features alone. Both compute

    x = norm(tokens + positions),    then for each block    x += s1 attention(norm(x)),
                                                            x += s2 MLP(norm(x)),

where the first norm and the scales s are optional. Features are the class token or the mean of the
patches, normalised, times a projection in CLIP.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from torch import nn

T = TypeVar("T")


class Block(NamedTuple, Generic[T]):
    """Operands of a block: names of parameters, or their values; `None` for absent ones."""

    norm1_w: T
    norm1_b: T
    qkv_w: T
    qkv_b: T
    out_w: T
    out_b: T
    scale1: T
    norm2_w: T
    norm2_b: T
    up_w: T
    up_b: T
    down_w: T
    down_b: T
    scale2: T


class Ends(NamedTuple, Generic[T]):
    """Operands before and after the blocks; `prefix` tokens precede the patches."""

    patch_w: T
    patch_b: T
    class_token: T
    registers: T
    positions: T
    pre_w: T
    pre_b: T
    post_w: T
    post_b: T
    projection: T


class Kind(NamedTuple):
    """The settings of a block, all that its function depends on beside tensors."""

    heads: int  #: Of attention
    eps: float  #: Of layer norms
    activation: str  #: `"quick"` is QuickGELU; else what `F.gelu` calls its approximation


@dataclasses.dataclass(frozen=True)
class Tower:
    """A vision transformer."""

    kind: Kind
    blocks: tuple[Block[str | None], ...]  #: Names of parameters, block by block
    ends: Ends[str | None]  #: Names of the others
    #: Whether tokens between blocks stay float32 under autocast (timm), or are rounded (open_clip).
    wide: bool
    patch: tuple[int, int]
    prefix_positions: bool = True  #: Whether positions are of the class token and registers too
    mean: bool = False  #: Whether features are the mean of the patches' tokens, not the class token
    mean_prefix: bool = False  #: Whether that mean is of the class token and registers too
    norm_last: bool = False  #: Whether tokens are pooled before they are normalised


class _Unknown(Exception):  # noqa: N818 - an answer: the network has more in it
    pass


def tower(module: nn.Module) -> Tower | None:
    """Return a network's shape, or `None` where it is another one than a `Tower`."""
    library = type(module).__module__.partition(".")[0]
    read = {"open_clip": _open_clip, "timm": _timm}.get(library)
    try:
        return read(module) if read else None
    except (_Unknown, AttributeError):
        return None


def _open_clip(tower: nn.Module) -> Tower:
    from open_clip import transformer as library  # here, for it takes seconds

    if type(tower) is not library.VisionTransformer or tower.output_tokens:
        raise _Unknown
    _require(tower.attn_pool is None and tower.pool_type in ("tok", "avg"))
    norms, activations, blocks = [tower.ln_pre, tower.ln_post], [], []
    for number, block in enumerate(tower.transformer.resblocks):
        at = f"transformer.resblocks.{number}."
        attention = block.attn
        _require(type(block) is library.ResidualAttentionBlock)
        _require(isinstance(attention, nn.MultiheadAttention) and attention.batch_first)
        _require(attention.in_proj_weight is not None and attention.bias_k is None)
        _require(not attention.add_zero_attn and not hasattr(block, "ln_1_kv"))
        norms += [block.ln_1, block.ln_2]
        activations.append(block.mlp.gelu)
        bias = None if attention.in_proj_bias is None else f"{at}attn.in_proj_bias"
        parts = ("ln_1", "attn.out_proj", "ls_1", "ln_2", "mlp.c_fc", "mlp.c_proj", "ls_2")
        blocks.append(_block(block, at, (f"{at}attn.in_proj_weight", bias), *parts))
    ends = Ends(
        *_patches(tower.conv1, "conv1"), "class_embedding", None, "positional_embedding",
        *_norm(tower.ln_pre, "ln_pre"), *_norm(tower.ln_post, "ln_post"),
        None if tower.proj is None else "proj",
    )  # fmt: skip
    known = library.LayerNorm, library.LayerNormFp32, nn.Identity  # they round to the input's type
    _require(all(type(norm) in known for norm in norms))
    heads = {block.attn.num_heads for block in tower.transformer.resblocks}
    kind = Kind(_same(heads), _eps(norms), _activation(activations, library.QuickGELU))
    return Tower(
        kind, tuple(blocks), ends, wide=False, patch=tower.conv1.kernel_size,
        mean=tower.pool_type == "avg", norm_last=tower.final_ln_after_pool,
    )  # fmt: skip


def _timm(tower: nn.Module) -> Tower:
    from timm import layers  # here, for it takes seconds
    from timm.models import vision_transformer as library

    embed = tower.patch_embed
    if type(tower) is not library.VisionTransformer or type(embed) is not layers.PatchEmbed:
        raise _Unknown
    _require(tower.attn_pool is None and tower.global_pool in ("token", "avg"))
    _require(tower.pos_embed is not None and not tower.dynamic_img_size and embed.flatten)
    _require(isinstance(embed.norm, nn.Identity) and not embed.dynamic_img_pad)
    _require(isinstance(tower.head, nn.Identity))
    last = tower.fc_norm if isinstance(tower.norm, nn.Identity) else tower.norm
    _require(last is tower.fc_norm or isinstance(tower.fc_norm, nn.Identity))
    norms, activations, blocks = [tower.norm_pre, last], [], []
    for number, block in enumerate(tower.blocks):
        at = f"blocks.{number}."
        attention, mlp = block.attn, block.mlp
        _require(type(block) is library.Block and type(attention) is layers.Attention)
        _require(type(mlp) is layers.Mlp and getattr(attention, "gate", None) is None)
        between = [attention.q_norm, attention.k_norm, mlp.norm]
        between.append(getattr(attention, "norm", nn.Identity()))
        _require(all(isinstance(part, nn.Identity) for part in between))
        norms += [block.norm1, block.norm2]
        activations.append(mlp.act)
        qkv = _linear(attention.qkv, f"{at}attn.qkv")
        parts = ("norm1", "attn.proj", "ls1", "norm2", "mlp.fc1", "mlp.fc2", "ls2")
        blocks.append(_block(block, at, qkv, *parts))
    ends = Ends(
        *_patches(embed.proj, "patch_embed.proj"),
        None if tower.cls_token is None else "cls_token",
        None if tower.reg_token is None else "reg_token",
        "pos_embed",
        *_norm(tower.norm_pre, "norm_pre"),
        *_norm(last, "fc_norm" if last is tower.fc_norm else "norm"),
        None,
    )
    heads = {block.attn.num_heads for block in tower.blocks}
    _require({block.attn.attn_dim for block in tower.blocks} == {tower.embed_dim})
    kind = Kind(_same(heads), _eps(norms), _activation(activations, None))
    return Tower(
        kind, tuple(blocks), ends, wide=True, patch=embed.proj.kernel_size,
        prefix_positions=not tower.no_embed_class, mean=tower.global_pool == "avg",
        mean_prefix=tower.pool_include_prefix, norm_last=last is tower.fc_norm,
    )  # fmt: skip


def _block(
    block: nn.Module, at: str, qkv: tuple[str, str | None], *parts: str
) -> Block[str | None]:
    """Return the names of a block's weights, from those of its other modules, in order."""
    modules = ((block.get_submodule(part), f"{at}{part}") for part in parts)
    norm1, out, scale1, norm2, up, down, scale2 = modules
    before = *_norm(*norm1), *qkv, *_linear(*out), _scale(*scale1)
    return Block(*before, *_norm(*norm2), *_linear(*up), *_linear(*down), _scale(*scale2))


def _require(usual: bool) -> None:
    if not usual:
        raise _Unknown


def _same(values: Iterable[T]) -> T:
    known = set(values)
    _require(len(known) == 1)
    return known.pop()


def _norm(norm: nn.Module, at: str) -> tuple[str | None, str | None]:
    if isinstance(norm, nn.Identity):
        return None, None
    _require(isinstance(norm, nn.LayerNorm) and norm.weight is not None)
    return f"{at}.weight", None if norm.bias is None else f"{at}.bias"


def _linear(linear: nn.Module, at: str) -> tuple[str, str | None]:
    _require(isinstance(linear, nn.Linear))
    return f"{at}.weight", None if linear.bias is None else f"{at}.bias"


def _patches(conv: nn.Module, at: str) -> tuple[str, str | None]:
    tiles = conv.stride == conv.kernel_size and conv.padding == (0, 0)
    _require(isinstance(conv, nn.Conv2d) and tiles)
    _require(conv.groups == 1 and conv.dilation == (1, 1))
    return f"{at}.weight", None if conv.bias is None else f"{at}.bias"


def _scale(scale: nn.Module, at: str) -> str | None:
    if isinstance(scale, nn.Identity):
        return None
    _require([name for name, _ in scale.named_parameters()] == ["gamma"])
    return f"{at}.gamma"


def _eps(norms: Iterable[nn.Module]) -> float:
    return _same(norm.eps for norm in norms if not isinstance(norm, nn.Identity))


def _activation(parts: Iterable[nn.Module], quick: type | None) -> str:
    names = set()
    for part in parts:
        if quick is not None and type(part) is quick:
            names.add("quick")
        else:
            _require(type(part).__name__ in ("GELU", "GELUTanh"))
            tanh = type(part).__name__ == "GELUTanh"
            names.add("tanh" if tanh else getattr(part, "approximate", "none"))
    return _same(names)
