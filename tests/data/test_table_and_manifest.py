import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import surefind as sf
from surefind.data.sources import load_manifest, read_table


@pytest.fixture
def folder(tmp_path, save_image):
    for name in ("a", "b", "c", "d"):
        save_image(f"pictures/{name}.png", size=(6, 4))
    return tmp_path


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_csv_of_labels_and_splits(folder):
    path = write(
        folder / "list.csv",
        "path,label,split,remark\n"
        "pictures/a.png,cat,train,\n"
        "pictures/b.png,dog,train,x\n"
        '"pictures/c.png",bird,test,"a, b"\n'
        f"{folder}/pictures/d.png,dog,test,\n",
    )
    splits = load_manifest(path)
    assert list(splits) == ["train", "test"]
    assert splits.train.classes == splits.test.classes == ("bird", "cat", "dog")
    assert splits.train.labels.tolist() == [1, 2]
    assert splits.test.labels.tolist() == [0, 2]
    assert splits.train.names == ("pictures/a.png", "pictures/b.png")
    assert splits.test.name == "list"
    assert splits.test.read().shape == (2, 3, 4, 6)


def test_a_parquet_of_positions(folder):
    table = pa.table({
        "path": ["pictures/a.png", "pictures/b.png"],
        "easting": [500000.25, 500010.0],
        "northing": [4649776, 4649777],
        "name": ["first", "second"],
    })
    pq.write_table(table, folder / "places.parquet")
    data = load_manifest(folder / "places.parquet", mode="L", name="places")["all"]
    assert data.labels is None
    assert data.positions.tolist() == [[500000.25, 4649776.0], [500010.0, 4649777.0]]
    assert data.names == ("first", "second")
    assert data.read().shape == (2, 1, 4, 6)
    assert data.relation().n_positive == 2


def test_parquet_labels_may_be_numbers_and_are_sorted_as_such(folder):
    table = pa.table({"path": [f"pictures/{c}.png" for c in "abc"], "label": [10, 9, 10]})
    pq.write_table(table, folder / "list.pq")
    data = load_manifest(folder / "list.pq")["all"]
    assert data.classes == ("9", "10")
    assert data.labels.tolist() == [1, 0, 1]


def test_a_byte_order_mark_and_blank_lines_are_no_matter(folder):
    path = folder / "list.csv"
    path.write_bytes(b"\xef\xbb\xbfpath, label\r\npictures/a.png, cat\r\n\r\n")
    assert load_manifest(path)["all"].classes == ("cat",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; its first line must name the columns"),
        ("path,label\n", "lists no images"),
        ("label\ncat\n", "no column 'path'; it has 'label'"),
        ("path,easting\npictures/a.png,1\n", "needs a column 'label', or 'easting' and 'northing'"),
        ("path,label,path\na,b,c\n", "names a column twice"),
        ("path,label\npictures/a.png,cat\npictures/b.png\n", "line 3 has 1 cells where the header"),
        ("path,label\npictures/a.png,\n", "line 2: label is empty"),
        ("path,label\n,cat\n", "line 2: path is empty"),
        ("path,label,split\npictures/a.png,cat,\n", "line 2: split is empty"),
        ("path,label\npictures/z.png,cat\n", r"1 of 1 files that .* are missing: .*z\.png"),
        (
            "path,easting,northing\npictures/a.png,1,2\npictures/b.png,east,2\n",
            "line 3: easting must be a finite number; got 'east'",
        ),
        ("path,easting,northing\npictures/a.png,1,nan\n", "northing must be a finite .* 'nan'"),
    ],
)
def test_a_manifest_that_cannot_be_used_says_where(folder, text, message):
    with pytest.raises(sf.InputError, match=message):
        load_manifest(write(folder / "list.csv", text))


def test_files_that_are_no_tables_are_refused(tmp_path):
    with pytest.raises(sf.InputError, match=r"gone\.csv does not exist"):
        read_table(tmp_path / "gone.csv")
    (tmp_path / "binary.csv").write_bytes(b"path\n\xff\xfe\n")
    with pytest.raises(sf.InputError, match=r"binary\.csv is not a CSV file in UTF-8"):
        read_table(tmp_path / "binary.csv")
    (tmp_path / "half.parquet").write_bytes(b"PAR1 half a file")
    with pytest.raises(sf.InputError, match=r"half\.parquet is not a Parquet file"):
        read_table(tmp_path / "half.parquet")


def test_a_null_is_an_empty_cell(tmp_path):
    pq.write_table(pa.table({"path": ["a", None]}), tmp_path / "x.parquet")
    table = read_table(tmp_path / "x.parquet")
    assert table["path"] == ["a", ""]
    assert len(table) == 2
