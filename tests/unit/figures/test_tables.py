"""Tidy records as tables: means, order, labels, intervals."""

import pandas as pd

from tasklab.evidence import figures


def rows(*cells, columns=("merge", "n_tasks", "seed", "task", "value")):
    return pd.DataFrame(cells, columns=list(columns))


def test_cells_are_means_over_tasks_and_then_seeds_in_the_books_order():
    df = rows(
        ("ties", 2, 0, "a", 10.0), ("ties", 2, 0, "b", 20.0), ("ties", 2, 1, "a", 45.0),
        ("arithmetic", 2, 0, "a", 1.0), ("mine", 8, 0, "a", 2.0),
    )  # fmt: skip
    table = figures.tabulate(df, "merge", "n_tasks")
    assert table["merge"].tolist() == ["mine", "Task arithmetic", "TIES"]
    assert table[2].tolist()[1:] == [1.0, 30.0] and table[2].isna()[0]
    raw = figures.tabulate(df, "merge", "n_tasks", named=False)
    assert raw.index.tolist() == ["mine", "arithmetic", "ties"]
    across = figures.tabulate(df, "n_tasks", "merge")
    assert across.columns.tolist() == ["n_tasks", "mine", "Task arithmetic", "TIES"]


def test_rows_with_ends_are_effects_with_intervals():
    columns = ("merge", "method", "value", "low", "high")
    df = rows(("ties", "linearized", 1.0, -1.0, 3.0), ("ties", "nonlinear", 2.0, None, None),
              ("tsv_m", "nonlinear", -2.0, -3.0, -1.0), columns=columns)  # fmt: skip
    table = figures.tabulate(df, "merge", "method")
    assert table.columns.tolist() == ["merge", "non-linear", "linearized"]
    assert table["non-linear"].tolist() == ["+2.0", "−2.0 (−3.0 to −1.0)"]
    assert table["linearized"].tolist() == ["+1.0 (−1.0 to 3.0)", "–"]


def test_several_columns_name_a_row():
    columns = ("model", "method", "quantity", "value")
    df = rows(("b", "linearized", "sum", 1.0), ("b", "jointly", "sum", 2.0),
              ("a", "nonlinear", "alone", 3.0), columns=columns)  # fmt: skip
    table = figures.tabulate(df, ["model", "method"], "quantity")
    assert table[["model", "method"]].to_numpy().tolist() == [
        ["b", "jointly"], ["b", "linearized"], ["a", "non-linear"]]  # fmt: skip
    assert table.columns.tolist() == ["model", "method", "sum", "alone"]
