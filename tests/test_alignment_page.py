"""The page of alignments: what it says, by parsing; what it does, in a headless browser where there is one."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest
import torch

from hf_attention_seq2seq.alignment import Alignment
from hf_attention_seq2seq.alignment_page import AlignmentView, alignment_html, save_alignment_html

ENGLISH, HEBREW = "a blue shirt.", "חולצה כחולה."
EVIL = ["</script><b>x</b>", '"><img src=x onerror="alert(1)">', "<!--", "&lt;", "a\x00b\ud800", ""]


def pair(*shape, seed=0):
    """English to Hebrew with places in the text and an end of sentence without one; weights `(*shape, 4, 5)`."""
    weights = torch.rand(*shape, 4, 5, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    return {
        "source": ENGLISH,
        "target": HEBREW,
        "source_tokens": ["a", "▁blue", "▁shirt", ".", "</s>"],
        "target_tokens": ["חולצה", "▁כחולה", ".", "</s>"],
        "source_offsets": [(0, 1), (2, 6), (7, 12), (12, 13), None],
        "target_offsets": [(0, 5), (6, 11), (11, 12), (0, 0)],
        "weights": weights,
    }


def tokens_only(source, target):
    return {"source_tokens": source, "target_tokens": target, "weights": torch.ones(len(target), len(source))}


class Parsed(HTMLParser):
    """The texts of the list boxes, the tokens in them, the data, the choices and all tags."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.tokens, self.data, self.choices, self.tags, self.open = [], [], [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        self.open.append((tag, attributes))
        if attributes.get("role") == "listbox":
            self.texts.append("")
            self.tokens.append([])
        elif attributes.get("role") == "option":
            self.tokens[-1].append("")
        if tag == "select":
            self.choices.append((attributes["name"], []))
        if tag == "option":
            self.choices[-1][1].append(attributes["value"])

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        roles = [attributes.get("role") for _, attributes in self.open]
        if "listbox" in roles:
            self.texts[-1] += data
        if "option" in roles:
            self.tokens[-1][-1] += data
        if self.open and self.open[-1] == ("script", {"type": "application/json"}):
            self.data.append(json.loads(data))


def test_the_texts_are_shown_as_they_are():
    parsed = Parsed(alignment_html(pair(), source_language="en", target_language='h"e'))
    assert parsed.texts == [ENGLISH + "</s>", HEBREW + "</s>"]
    assert parsed.tokens == [["a", "blue", "shirt", ".", "</s>"], ["חולצה", "כחולה", ".", "</s>"]]
    boxes = [attributes for _, attributes in parsed.tags if attributes.get("role") == "listbox"]
    assert [(box["dir"], box["lang"]) for box in boxes] == [("auto", "en"), ("auto", 'h"e')]
    torch.testing.assert_close(torch.tensor(parsed.data[0]), pair()["weights"][None, None], atol=5e-5, rtol=0)


def test_tokens_without_places_in_the_text():
    """Without a text the tokens stand for it; of pieces of one character, such as bytes, the second stands apart."""
    parsed = Parsed(alignment_html({**pair(), "source": None, "target_offsets": None}))
    assert parsed.texts == ["a ▁blue ▁shirt . </s>", "חולצה ▁כחולה . </s>"]
    bytes_ = {**tokens_only(["x", "<E4>", "<B8>", "!"], ["y"]), "source": " x 中!\n"}
    parsed = Parsed(alignment_html({**bytes_, "source_offsets": [(1, 2), (3, 4), (3, 4), (4, 5)]}))
    assert parsed.tokens[0] == ["x", "中", "<B8>", "!"] and parsed.texts[0] == " x 中<B8>!\n"


def test_choices_are_there_where_there_is_a_choice():
    def choices(*shape):
        return Parsed(alignment_html(pair(*shape))).choices

    assert choices() == choices(1) == choices(1, 1) == []
    assert choices(2) == [("head", ["mean", "0", "1"])]
    assert choices(2, 1) == [("layer", ["0", "1"])]
    assert choices(2, 3) == [("layer", ["0", "1"]), ("head", ["mean", "0", "1", "2"])]


def test_nothing_gets_out_of_its_place():
    page = alignment_html(tokens_only(EVIL, EVIL), title=EVIL[0])
    parsed = Parsed(page)
    shown = ["a\ufffdb\ufffd" if "\x00" in token else token or "\u2205" for token in EVIL]
    assert parsed.tokens == [shown, shown]
    assert not {"b", "img"} & {tag for tag, _ in parsed.tags}
    assert not any(name.startswith("on") or name in ("src", "href") for _, names in parsed.tags for name in names)
    assert "://" not in page and page.count("<script") == 2
    framed = Parsed(AlignmentView(tokens_only(EVIL, EVIL), title=EVIL[1])._repr_html_())
    assert [tag for tag, _ in framed.tags] == ["iframe"] and framed.tags[0][1]["sandbox"] == "allow-scripts"
    assert framed.tags[0][1]["srcdoc"] == alignment_html(tokens_only(EVIL, EVIL), title=EVIL[1])


def test_saved_pages(tmp_path):
    save_alignment_html([pair(), pair(2)], tmp_path / "page.html", "two")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page == alignment_html([pair(), pair(2)], "two") and len(Parsed(page).texts) == 4


@pytest.mark.parametrize(
    ("alignments", "message"),
    [
        ([], "alignments is empty"),
        ({**pair(), "weights": torch.ones(5, 4)}, r"shape \(5, 4\)"),
        ({**pair(), "weights": torch.full((4, 5), float("nan"))}, "not finite"),
        ({**pair(), "source_offsets": [(0, 1)]}, "source_offsets has 1 entries for 5 tokens"),
        ({**pair(), "target_offsets": [(0, 99)] * 4}, r"target_offsets has \(0, 99\); the text has 12 characters"),
    ],
)
def test_pages_that_cannot_be(alignments, message):
    with pytest.raises(ValueError, match=message):
        alignment_html(alignments)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no browser could be started: {error}")
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page, watched for errors, messages and requests."""
    noises, pages = [], []

    def open_page(text, **options):
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        page = browser.new_page(**options)
        pages.append(page)
        page.set_default_timeout(60_000)
        for event in ("console", "pageerror", "dialog"):
            page.on(event, lambda noise: noises.append(getattr(noise, "text", str(noise))))
        page.on("request", lambda request: noises.append(request.url))
        page.goto((tmp_path / "page.html").as_uri())
        return page

    yield open_page
    for page in pages:
        page.close()
    assert noises == [(tmp_path / "page.html").as_uri()]  # the page itself, and nothing else


def token(page, side, index):
    return page.locator(f".{side} [role=option]").nth(index)


def weights_shown(page, side):
    """By what a person sees: how opaque the colour behind each token is."""
    colours = page.locator(f".{side} [role=option]").evaluate_all(
        "all => all.map(one => getComputedStyle(one).backgroundColor)"
    )
    return torch.tensor([float(re.match(r"rgba\(.*, ([\d.e-]+)\)$", c)[1]) if "rgba" in c else 1.0 for c in colours])


def assert_shown(page, side, expected):
    torch.testing.assert_close(weights_shown(page, side), expected, atol=5e-3, rtol=0)


def test_hovering_shades_the_other_text(opened):
    page, weights = opened(alignment_html(pair())), pair()["weights"]
    token(page, "target", 1).hover()
    assert_shown(page, "source", weights[1])
    assert_shown(page, "target", torch.zeros(4))
    first, second, third = weights[1].sort(descending=True).indices[:3].tolist()
    names = ["a", "blue", "shirt", ".", "</s>"]
    expected = ", ".join(f"{names[index]} {weights[1, index]:.3f}" for index in (first, second, third))
    assert page.locator("[role=status]").inner_text() == f"כחולה ↔ {expected}"
    token(page, "source", 2).hover()
    assert_shown(page, "target", weights[:, 2])
    page.locator("tbody tr").nth(3).locator("td").nth(1).hover()
    assert page.locator("[role=status]").inner_text() == f"</s> ↔ blue {weights[3, 1]:.3f}"
    assert page.locator("tbody th.active, thead th.active").all_inner_texts() == ["blue", "</s>"]
    page.locator("summary").hover()
    assert_shown(page, "source", torch.zeros(5))
    assert page.locator("[role=status]").inner_text() == ""


def test_choosing_layer_and_head(opened):
    page, weights = opened(alignment_html(pair(2, 3))), pair(2, 3)["weights"]

    def assert_all(expected):
        rows = page.locator("tbody tr").evaluate_all("rows => rows.map(row => [...row.cells].map(c => c.textContent))")
        shown = torch.tensor([[float(cell) for cell in row[1:]] for row in rows])
        torch.testing.assert_close(shown, 100 * expected, atol=0.51, rtol=0)
        assert_shown(page, "source", expected[0])

    token(page, "target", 0).hover()  # and stay there
    assert_all(weights[1].mean(0))  # at first: the last layer's mean
    page.locator("[name=layer]").select_option(index=0)
    page.locator("[name=head]").select_option(index=3)
    assert_all(weights[0, 2])


def test_the_keyboard_does_what_the_pointer_does(opened):
    """The tab key goes from text to text, arrows along each, to the left in Hebrew."""
    page, weights = opened(alignment_html(pair())), pair()["weights"]
    page.keyboard.press("Tab")
    assert_shown(page, "target", weights[:, 0])
    page.keyboard.press("ArrowRight")
    assert_shown(page, "target", weights[:, 1])
    page.keyboard.press("Tab")
    assert_shown(page, "source", weights[0])
    page.keyboard.press("ArrowLeft")
    assert_shown(page, "source", weights[1])
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # at the edge: stays
    assert_shown(page, "source", weights[0])
    page.keyboard.press("End")
    assert_shown(page, "source", weights[3])
    page.keyboard.press("Shift+Tab")
    assert_shown(page, "target", weights[:, 1])  # where it was left
    page.keyboard.press("Home")
    assert_shown(page, "target", weights[:, 0])


def test_hebrew_runs_from_the_right(opened):
    """Also where the first token is a Latin special one."""
    page = opened(alignment_html([pair(), tokens_only(["<s>", "שלום", "עולם"], ["x"])]))
    for side, number in (("target", 0), ("source", 1)):
        tokens = page.locator(f".{side}").nth(number).locator("[role=option]").all()
        places = [one.bounding_box()["x"] for one in tokens]
        assert places == sorted(places, reverse=True)
    places = [one.bounding_box()["x"] for one in page.locator(".source").nth(0).locator("[role=option]").all()]
    assert places == sorted(places)


def test_evil_tokens_are_harmless(opened):
    page = opened(alignment_html(tokens_only(EVIL, EVIL), title=EVIL[1]))
    for index in range(len(EVIL)):
        token(page, "source", index).hover()
    assert page.locator("b, img").count() == 0
    assert token(page, "source", 1).text_content() == EVIL[1] == page.title() == page.locator("h1").text_content()
    assert page.locator("thead th").nth(1).text_content() == EVIL[1]


def test_views_in_one_notebook_do_not_disturb_each_other(opened):
    """Put into the page the way notebooks do, where scripts of the outer page would not run."""
    views = [AlignmentView(pair(seed=seed))._repr_html_() for seed in (0, 1)]
    page = opened("<!DOCTYPE html><p role=option class=source>outside</p><main></main>")
    page.evaluate("views => { document.querySelector('main').innerHTML = views.join('') }", views)
    frames = [page.frame_locator("iframe").nth(index) for index in (0, 1)]
    for frame, row in zip(frames, (1, 2), strict=True):
        token(frame, "target", row).hover()
        assert_shown(frame, "source", pair(seed=row - 1)["weights"][row])
    token(frames[1], "source", 0).hover()
    assert_shown(frames[1], "source", torch.zeros(5))
    assert page.locator("p").evaluate("one => one.getAttribute('style')") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_are_readable_on_the_deepest_shade(opened, scheme):
    """Contrast of at least 4.5 to 1, as WCAG 2 defines it, in both colour schemes."""
    hard = {**pair(), "weights": torch.ones(4, 5)}
    page = opened(alignment_html(hard), color_scheme=scheme)
    token(page, "target", 0).hover()
    style = "one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor]"
    text, shade = (
        [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        for colour in token(page, "source", 1).evaluate(style)
    )

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lighter, darker = sorted((luminance(text), luminance(shade)), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5
    assert (luminance(text) > 0.5) == (scheme == "dark")


def test_large_maps_are_folded_up_and_drawn_when_opened(opened):
    page = opened(alignment_html(tokens_only(["x"] * 60, ["y"] * 60)))
    assert page.locator("tbody tr").count() == 0
    page.locator("summary").click()
    page.locator("tbody tr").nth(59).wait_for(state="attached")
    assert page.locator("tbody td").count() == 3600


def test_an_alignment_shows_itself_in_a_notebook():
    alignment = Alignment("a", "b", ["a"], ["b"], torch.ones(1, 1, 1), [(0, 1)], [(0, 1)])
    assert alignment._repr_html_() == AlignmentView(alignment)._repr_html_()
