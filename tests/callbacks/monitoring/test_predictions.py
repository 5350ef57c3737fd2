import csv

import torch

from fourfold.callbacks.monitoring.predictions import (
    format_csv,
    interleave,
    texts_in_row_order,
)


def test_outputs_of_ranks_alternate() -> None:
    assert interleave([["a", "c", "e"], ["b", "d"]]) == ["a", "b", "c", "d", "e"]


def test_texts_are_sorted_by_row_and_chunks_are_joined() -> None:
    assert texts_in_row_order([(2, "c"), (0, "a"), (1, "b")]) == ["a", "b", "c"]
    assert texts_in_row_order([((1, 0), "c"), ((0, 1), "b"), ((0, 0), "a")]) == ["a b", "c"]


def test_class_probabilities_are_written_in_row_order() -> None:
    probabilities = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    lines = format_csv([1, 0], probabilities, {"class_names": ["cat", "dog"]}).splitlines()
    expected = ["row,class,name,probability", "0,0,cat,1.000000", "1,1,dog,0.750000"]
    assert lines == expected


def test_predictions_of_images_name_file_and_true_class() -> None:
    probabilities = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    origins = [{"file": name, "true": "cat"} for name in ("a.png", "b.png")]
    lines = format_csv([1, 0], probabilities, {"class_names": ["cat", "dog"]}, origins).splitlines()
    assert lines[0] == "row,class,name,probability,file,true"
    assert lines[1:] == ["0,0,cat,1.000000,a.png,cat", "1,1,dog,0.750000,b.png,cat"]


def test_labels_with_the_names_of_columns_keep_their_probabilities() -> None:
    names = ["row", "true", "text", "file", "class"]
    origins = [{"file": "x:2", "true": "row, text", "text": "one"}]
    artifacts = {"class_names": names, "multi_label": True}
    values = torch.tensor([[0.125, 0.25, 0.375, 0.5, 0.625]])
    (row,) = csv.DictReader(format_csv([7], values, artifacts, origins).splitlines())
    labels = ["label row", "label true", "label text", "label file", "class"]
    assert [float(row[x]) for x in labels] == values[0].tolist()
    assert row | origins[0] == row
    assert row["row"] == "7"


def test_numbers_are_written_in_row_order() -> None:
    lines = format_csv([1, 0], torch.tensor([[0.5], [-2.0]]), None).splitlines()
    assert lines == ["row,value", "0,-2.000000", "1,0.500000"]
