"""Pictures: the right cell has the right shade, every character is drawn or named, films grow by one row a step."""

import warnings

import pytest
import torch

from hf_attention_seq2seq import visualization
from hf_attention_seq2seq.visualization import animate_alignment, plot_alignment

matplotlib = pytest.importorskip("matplotlib")

import numpy as np  # noqa: E402
from fontTools.fontBuilder import FontBuilder  # noqa: E402
from fontTools.pens.ttGlyphPen import TTGlyphPen  # noqa: E402
from matplotlib import font_manager  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from PIL import Image  # noqa: E402

UNASSIGNED = "\u0378"  # a code point without a character, so that no font has it
WEIGHTS = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])


def alignment(weights=WEIGHTS, source=None, target=None):
    height, width = weights.shape[-2:]
    source = source or [f"s{index}" for index in range(width)]
    return {"source_tokens": source, "target_tokens": target or [f"t{i}" for i in range(height)], "weights": weights}


def pixels(figure):
    """The picture, `(height, width)`, 0 to 255; a missing glyph is an error."""
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., 0].astype(int)


def shades(axis, picture, weights):
    """What the picture has in the middle of each cell."""
    target, source = np.indices(weights.shape[-2:]).reshape(2, -1)
    x, y = axis.transData.transform(np.stack((source, target), axis=1)).T
    return picture[picture.shape[0] - 1 - y.astype(int), x.astype(int)].reshape(weights.shape[-2:])


def texts(figure):
    """The labels of the source and of the target."""
    axis = figure.axes[0]
    return tuple([label.get_text() for label in labels] for labels in (axis.get_xticklabels(), axis.get_yticklabels()))


def test_source_across_and_target_down_and_white_is_one():
    figure = plot_alignment(alignment())
    assert texts(figure) == (["s0", "s1", "s2"], ["t0", "t1"])
    np.testing.assert_allclose(shades(figure.axes[0], pixels(figure), WEIGHTS), 255 * WEIGHTS.numpy(), atol=1)


def test_heads_are_panels():
    heads = torch.eye(6).reshape(6, 2, 3)  # each head looks elsewhere
    figure = plot_alignment(alignment(heads), title="six")
    assert [axis.get_title() for axis in figure.axes] == [f"head {number}" for number in range(1, 7)]
    picture = pixels(figure)
    for axis, head in zip(figure.axes, heads, strict=True):
        np.testing.assert_array_equal(shades(axis, picture, head), 255 * head.numpy())
    assert plot_alignment(alignment()).axes[0].get_title() == ""


def test_long_hard_and_local_alignments_stay_sharp():
    hard = torch.zeros(150, 200)
    hard[torch.arange(150), torch.arange(150)] = 1.0
    local = hard.roll(1, dims=1) * 0.5 + hard * 0.5
    figure = plot_alignment(alignment(torch.stack((hard, local))))
    picture = pixels(figure)
    assert max(picture.shape) < 4000
    for axis, head in zip(figure.axes, (hard, local), strict=True):
        np.testing.assert_allclose(shades(axis, picture, head), 255 * head.numpy(), atol=1)
    renderer = figure.canvas.get_renderer()
    boxes = [label.get_window_extent(renderer) for label in figure.axes[0].get_xticklabels()]
    assert all(left.x1 <= right.x0 for left, right in zip(boxes, boxes[1:], strict=False))


def test_characters_without_a_font_are_named(monkeypatch):
    monkeypatch.setattr(visualization, "_installed_fonts", list)
    tokens = ["中a", "a\nb", "\ue000", "\ud800", "$x$", "\U0001f642"]
    figure = plot_alignment(alignment(torch.eye(6), tokens, tokens), title="文")
    named = ["[U+4E2D]a", "a[U+000A]b", "[U+E000]", "[U+D800]", "$x$", "[U+1F642]"]
    assert texts(figure) == (named, named) and figure.get_suptitle() == "[U+6587]"
    pixels(figure)


def test_a_font_that_has_the_character_is_found(tmp_path, monkeypatch):
    """A font made here has the character as a full square, and was installed after matplotlib listed its fonts."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 1000), (1000, 1000), (1000, 0)):
        pen.lineTo(corner)
    pen.closePath()
    font = FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder([".notdef", "square"])
    font.setupCharacterMap({ord(UNASSIGNED): "square"})
    font.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "square": pen.glyph()})
    font.setupHorizontalMetrics({".notdef": (1000, 0), "square": (1000, 0)})
    font.setupHorizontalHeader(ascent=1000, descent=0)
    font.setupNameTable({"familyName": "Square Probe", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(tmp_path / "probe.ttf")

    monkeypatch.setattr(font_manager.fontManager, "ttflist", list(font_manager.fontManager.ttflist))
    tokens = ["one", UNASSIGNED]
    visualization._installed_fonts.cache_clear()
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    assert texts(plot_alignment(alignment(torch.eye(2), tokens)))[0] == ["one", "[U+0378]"]
    visualization._installed_fonts.cache_clear()
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(tmp_path / "probe.ttf")])
    figure = plot_alignment(alignment(torch.eye(2), tokens))
    visualization._installed_fonts.cache_clear()
    assert texts(figure)[0] == tokens
    picture = pixels(figure)
    box = figure.axes[0].get_xticklabels()[1].get_window_extent(figure.canvas.get_renderer())
    assert picture[round(picture.shape[0] - (box.y0 + box.y1) / 2), round((box.x0 + box.x1) / 2)] == 0


def drawn(token):
    figure = plot_alignment(alignment(torch.ones(1, 1), ["x"], [token]))
    return pixels(figure)


def test_right_to_left_words():
    """Hebrew is laid out from the right: as its reversal, forced to run from the left. Arabic letters join."""
    if tuple(map(int, matplotlib.__version__.split(".")[:2])) < (3, 11):
        pytest.skip("matplotlib lays out right-to-left words from version 3.11 on.")
    word = "שלום"
    np.testing.assert_array_equal(drawn(word), drawn("\u202d" + word[::-1]))
    assert not np.array_equal(drawn("سلم"), drawn("س\u200cل\u200cم"))  # non-joiners between


def test_combining_characters():
    assert texts(plot_alignment(alignment(torch.eye(2), ["e\u0301", "\u0301"])))[0] == ["e\u0301", "\u25cc\u0301"]
    np.testing.assert_array_equal(drawn("e\u0301"), drawn("\u00e9"))


def test_saves_a_picture(tmp_path):
    plot_alignment(alignment(), tmp_path / "a.png", title="$ x")
    assert Image.open(tmp_path / "a.png").width > 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": torch.ones(3, 2)}, r"shape \(3, 2\).*must be \(2, 3\)"),
        ({"weights": torch.ones(3)}, r"shape \(3,\)"),
        ({"weights": torch.ones(0, 2, 3)}, r"shape \(0, 2, 3\)"),
        ({"weights": torch.ones(2, 1, 2, 3)}, "2 layers; choose one"),
        ({"weights": WEIGHTS / 0}, "not finite"),
        ({"weights": None}, r"lacks \['weights'\]"),
        ({"target_tokens": [], "weights": torch.ones(0, 3)}, "3 source and 0 target tokens"),
    ],
)
def test_what_cannot_be_drawn(change, message):
    with pytest.raises(ValueError, match=message):
        plot_alignment({**alignment(), **change})


def cells_of_film(film, frame, figure, weights):
    film.seek(frame)
    return shades(figure.axes[0], np.asarray(film.convert("L")).astype(int), weights)


def test_a_film_grows_by_one_row_a_step(tmp_path):
    weights = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    animate_alignment(alignment(weights), tmp_path / "film.gif", title="a", steps_per_second=4)
    figure = plot_alignment(alignment(weights), title="a")
    still = pixels(figure)
    film = Image.open(tmp_path / "film.gif")
    assert (film.n_frames, film.size, film.info["loop"]) == (5, still.shape[::-1], 0)
    for step in range(5):
        expected = 255 * weights.numpy() * (np.arange(5) <= step)[:, None]
        np.testing.assert_allclose(cells_of_film(film, step, figure, weights), expected, atol=4)
        assert film.info["duration"] == (1000 if step == 4 else 250)
        names = np.asarray(film.convert("L")).astype(int)[:, : int(figure.axes[0].bbox.x0) - 2]
        there = [names[round(len(names) - y) - 6 : round(len(names) - y) + 6].min() < 128 for y in row_heights(figure)]
        assert there == [row <= step for row in range(5)]  # a word is named when it is written
    assert np.abs(np.asarray(film.convert("L")).astype(int) - still).mean() < 2


def row_heights(figure):
    return figure.axes[0].transData.transform([(0, row) for row in range(5)])[:, 1]


def test_films_of_one_step_and_of_many(tmp_path):
    animate_alignment(alignment(torch.ones(1, 2)), tmp_path / "one.gif")
    assert getattr(Image.open(tmp_path / "one.gif"), "n_frames", 1) == 1
    animate_alignment(alignment(torch.eye(40).expand(2, 40, 40)), tmp_path / "many.GIF")
    film = Image.open(tmp_path / "many.GIF")
    assert film.n_frames == 40 and max(film.size) < 1500


@pytest.mark.parametrize(
    ("options", "message"), [({"path": "film.mp4"}, "film.mp4"), ({"steps_per_second": 0}, "steps_per_second is 0")]
)
def test_films_that_cannot_be(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        animate_alignment(alignment(), **{"path": tmp_path / "film.gif", **options})


def test_no_window_or_global_figure_is_made():
    import matplotlib._pylab_helpers as managers

    before = len(managers.Gcf.get_all_fig_managers())
    assert isinstance(plot_alignment(alignment()), Figure)
    assert len(managers.Gcf.get_all_fig_managers()) == before
