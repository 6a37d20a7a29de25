"""A state dict in two, and together again; and what a peer sends is data, whatever it is."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from softrun.runtime.state.contents import Description
from softrun.runtime.state.tree import Tree, decoded

_PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
_TREES = st.recursive(
    _PLAIN | st.binary() | st.sampled_from([torch.float16, torch.int64, torch.device("cpu")]),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(_KEYS, inner) | st.sets(st.integers()),
    max_leaves=20,
)
_JSON = st.recursive(_PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
_TAGS = ("list", "tuple", "set", "dict", "counter", "tensor", "array", "bytes", "dtype", "device", "other")


@given(_TREES)
def test_what_is_no_tensor_goes_through_json_unchanged(tree: Any) -> None:
    rest = Tree().encode(tree, "values")
    again = decoded(json.loads(json.dumps(rest)), [])
    assert again == tree
    assert type(again) is type(tree)


def test_tensors_are_numbered_and_named_by_their_paths() -> None:
    tree = Tree()
    value = {"state": {0: {"step": torch.tensor(3), "mean": torch.ones(2)}}, "groups": [{"lr": torch.tensor(0.5)}]}
    rest = tree.encode(value, "optimizer")
    assert list(tree.tensors) == ["optimizer.state.0.step", "optimizer.state.0.mean", "optimizer.groups.0.lr"]
    again = decoded(json.loads(json.dumps(rest)), list(tree.tensors.values()))
    assert again["state"][0]["mean"] is value["state"][0]["mean"]


@example(["device", 0])
@given(_JSON | st.tuples(st.sampled_from(_TAGS), _JSON).map(list))
def test_a_damaged_tree_is_a_value_or_a_value_error(rest: Any) -> None:
    with suppress(ValueError):
        decoded(rest, [torch.ones(1)])


@given(st.binary() | _JSON.map(lambda value: json.dumps(value).encode()))
def test_a_damaged_description_is_refused(text: bytes) -> None:
    with pytest.raises(ValidationError):
        Description.model_validate_json(text)
