"""The page that translates as one types: its fragments of HTML, in a real browser, and as a Space."""

import contextlib
import filecmp
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import yaml

import hf_attention_seq2seq
from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
    TranslationPipeline,
    demo_app,
)
from hf_attention_seq2seq.alignment_page import alignment_html

from .pipeline_helpers import make_model

ENGLISH = ["a man sleeps", "a dog runs", "a woman <b>", "{{value}} ${1+1}"]
GERMAN = ["ein Mann schläft", "ein Hund rennt", "eine Frau <i>", "{{value}} ${1+1}"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60_000  # milliseconds; machines that test may be busy


def own_model(**options):
    """An untrained model whose outputs differ between inputs, and end."""
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(ENGLISH, GERMAN, model="word")
    torch.manual_seed(5)
    sizes = {"embedding_size": 16, "hidden_size": 16, "initializer_range": 1.0}
    config = AttentionSeq2SeqConfig(
        vocab_size=len(tokenizer), decoder_vocab_size=tokenizer.target_vocab_size, **sizes, **options
    )
    model = AttentionSeq2SeqForConditionalGeneration(config).eval()
    model.generation_config.max_new_tokens = 5
    return model, tokenizer


def always_unknown():
    model, tokenizer = own_model()
    with torch.no_grad():
        model.lm_head.bias[tokenizer.unk_token_id] = 50
    model.generation_config.max_new_tokens = 2
    return model, tokenizer


def translator(model, tokenizer):
    return TranslationPipeline(model=model, tokenizer=tokenizer, task="translation")


def texts_of(model, tokenizer, text, beams, results=1):
    records = translator(model, tokenizer)(text, num_beams=beams, num_return_sequences=results)
    return [record["translation_text"] or "(an empty text)" for record in records]


class Parts(HTMLParser):
    """The headings, frames and messages of a fragment, and every tag in it."""

    def __init__(self, fragment):
        super().__init__()
        self.tags, self.headings, self.frames, self.messages = [], [], [], []
        self.feed(fragment)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "iframe":
            self.frames.append(dict(attributes)["srcdoc"])

    def handle_data(self, data):
        {"h3": self.headings, "p": self.messages}[self.tags[-1]].append(data)


# --- The fragments ---------------------------------------------------------------------------------------------------


def test_results_are_those_of_the_pipeline():
    model, tokenizer = own_model()
    pipe = translator(model, tokenizer)
    options = {"num_beams": 4, "num_return_sequences": 3}
    for text in ENGLISH[:2]:
        records = pipe(text, return_alignments=True, **options)
        parts = Parts(demo_app.results_html(pipe, f" {text}\n", return_alignments=True, **options))
        assert parts.headings == [record["translation_text"] for record in records]
        assert parts.frames == [alignment_html(record["alignment"]) for record in records]
        assert parts.tags == ["section", "h3", "iframe"] * 3
    parts = Parts(demo_app.results_html(pipe, ENGLISH[0], **options))
    assert parts.tags == ["section", "h3"] * 3


def test_nothing_and_messages():
    model, tokenizer = own_model()
    pipe = translator(model, tokenizer)
    options = {"num_beams": 2, "num_return_sequences": 1}
    assert demo_app.results_html(pipe, "", **options) == demo_app.results_html(pipe, " \n", **options) == ""
    too_many = Parts(demo_app.results_html(pipe, "a dog", num_beams=2, num_return_sequences=3))
    assert too_many.messages == ["3 results need at least 3 beams; now there are 2."]
    tokenizer.model_max_length = 4
    assert Parts(demo_app.results_html(pipe, "a dog runs", **options)).headings
    too_long = Parts(demo_app.results_html(pipe, "<b> a dog runs", **options))
    assert too_long.tags == ["p"] and "5 tokens" in too_long.messages[0] and "<b> a dog runs" in too_long.messages[0]


def test_an_empty_translation_is_named():
    shown = demo_app.results_html(
        lambda *_, **__: [{"translation_text": ""}], "a", num_beams=1, num_return_sequences=1
    )
    assert "(an empty text)" in shown


def test_repositories_of_models_go_without_the_page(tmp_path):
    own_model()[0].save_pretrained(tmp_path)
    code = {path.name for path in tmp_path.glob("*.py")}
    assert "modeling_attention_seq2seq.py" in code and not code & {"demo_app.py", "alignment_page.py"}


def test_a_model_that_is_not_there(tmp_path, capsys):
    with pytest.raises(SystemExit):
        demo_app.main([str(tmp_path / "nothing")])
    assert "nothing" in capsys.readouterr().err


def test_a_model_of_another_kind(tmp_path, capsys):
    make_model("bart").save_pretrained(tmp_path)
    with pytest.raises(SystemExit):
        demo_app.main([str(tmp_path)])
    assert "BartForConditionalGeneration; the page is for models of this package" in capsys.readouterr().err


def test_without_gradio(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match="pip install 'gradio"):
        demo_app.build_app(*own_model())


# --- In a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    pytest.importorskip("gradio", reason="gradio is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with api.sync_playwright() as driver:
        try:
            # Without a browser of the system playwright looks for its own. Only root needs to leave out the sandbox.
            browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"no browser: {error}")
        api.expect.set_options(timeout=PATIENCE)
        yield browser
        api.expect.set_options(timeout=5_000)
        browser.close()


@contextlib.contextmanager
def opened(browser, address):
    """A page that fails if a script of it does."""
    errors = []
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(address, wait_until="domcontentloaded")
    yield page
    page.close()
    assert not errors


@contextlib.contextmanager
def served(browser, app):
    address = app.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1")[1]
    try:
        with opened(browser, address) as page:
            yield page
    finally:
        app.close()


def shows(page, results):
    from playwright.sync_api import expect

    expect(page.locator(".result h3")).to_have_text(results)
    expect(page.locator(".result")).to_have_count(len(results))


def choose(page, name, value):
    number = page.get_by_role("spinbutton", name=re.compile(name))
    number.fill(str(value))
    number.press("Tab")


def test_it_translates_as_one_types(browser):
    from playwright.sync_api import expect

    model, tokenizer = own_model()
    with served(browser, demo_app.build_app(model, tokenizer, "Words & <more>", ["a man sleeps"])) as page:
        text = page.get_by_label("Text", exact=True)
        expect(page.locator("h1")).to_have_text("Words & <more>")
        shows(page, [])
        for typed in ("a", " dog", " runs"):
            text.press_sequentially(typed)
            shows(page, texts_of(model, tokenizer, text.input_value(), 4))
        frame = page.frame_locator("iframe")
        for word in ("dog", "runs"):
            expect(frame.locator("body")).to_contain_text(word)
        frame.get_by_role("option", name="dog").hover()  # the page's script runs
        expect(frame.get_by_role("status")).to_have_text(re.compile(r"^dog ↔ .+ [01]\.\d{3}"))

        choose(page, "Results", 3)
        shows(page, texts_of(model, tokenizer, "a dog runs", 4, 3))
        expect(page.locator("iframe")).to_have_count(3)
        expect(page.frame_locator("iframe").last.get_by_role("listbox", name="source")).to_have_text("a dog runs</s>")
        choose(page, "Beams", 2)
        expect(page.get_by_role("alert").last).to_have_text("3 results need at least 3 beams; now there are 2.")
        shows(page, [])
        choose(page, "Results", 1)
        shows(page, texts_of(model, tokenizer, "a dog runs", 2))

        page.get_by_text("a man sleeps").first.click()  # the example
        shows(page, texts_of(model, tokenizer, "a man sleeps", 2))
        text.fill("  ")
        shows(page, [])
        expect(page.locator("iframe")).to_have_count(0)


def test_what_is_typed_stays_text(browser):
    """Neither markup nor gradio's templates are carried out, with copied words, in results, frames and messages."""
    model, tokenizer = always_unknown()
    tokenizer.model_max_length = 4
    hostile = ["<img/src=x/onerror=document.title='bad'>", "{{value}}", "${document.title='bad'}"]
    with served(browser, demo_app.build_app(model, tokenizer)) as page:
        text = page.get_by_label("Text", exact=True)
        page.get_by_label("Replace unknown words").check()
        for word in hostile:
            text.fill(word)
            shows(page, [f"{word} {word}"])
        text.fill(" ".join(["a", *hostile, "a"]))
        message = page.get_by_role("alert").last
        message.filter(has_text="6 tokens").wait_for()
        assert all(word in message.text_content() for word in hostile[:1])
        assert page.title() == "Translate and align" and page.locator("img[src=x]").count() == 0


def test_right_to_left(browser):
    model, tokenizer = always_unknown()
    with served(browser, demo_app.build_app(model, tokenizer)) as page:
        page.get_by_label("Replace unknown words").check()
        page.get_by_label("Text", exact=True).fill("שלום")
        shows(page, ["שלום שלום"])
        box = page.locator(".result h3").bounding_box()
        edges = """heading => {
            const range = document.createRange();
            range.selectNodeContents(heading);
            return range.getBoundingClientRect().right;
        }"""
        assert page.locator(".result h3").evaluate(edges) == pytest.approx(box["x"] + box["width"], abs=2)


def test_a_model_without_attention(browser):
    from playwright.sync_api import expect

    model, tokenizer = own_model(attention_type="none")
    with served(browser, demo_app.build_app(model, tokenizer)) as page:
        expect(page.get_by_text("This model has no attention")).to_be_visible()
        page.get_by_label("Text", exact=True).fill("a dog")
        shows(page, texts_of(model, tokenizer, "a dog", 4))
        expect(page.locator("iframe")).to_have_count(0)
        expect(page.get_by_label("Replace unknown words")).to_have_count(0)


# --- As a Space ------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    model, tokenizer = own_model()
    model.save_pretrained(tmp_path / "words")
    tokenizer.save_pretrained(tmp_path / "words")
    return tmp_path / "words"


def test_the_files_of_a_space(saved, tmp_path, monkeypatch):
    gradio = pytest.importorskip("gradio", reason="gradio is not installed")
    space = tmp_path / "space"
    demo_app.main([str(saved), "--space", str(space), "--example", "a dog", "--example", 'a "man"'])
    front, readme = (space / "README.md").read_text(encoding="utf-8").removeprefix("---\n").split("\n---\n")
    settings = yaml.safe_load(front)
    assert settings["sdk"] == "gradio" and settings["sdk_version"] == version("gradio")
    assert settings["python_version"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert settings["title"] == "words" and settings["app_file"] == "app.py" and "# words" in readme
    required = dict(line.split("==") for line in (space / "requirements.txt").read_text().splitlines())
    assert required["torch"] == version("torch").split("+")[0] and required["transformers"] == version("transformers")
    package = Path(hf_attention_seq2seq.__file__).parent
    modules = sorted(path.name for path in package.glob("*.py"))
    assert filecmp.cmpfiles(package, space / package.name, modules, shallow=False) == (modules, [], [])
    assert not list(space.rglob("__pycache__"))

    launched = []
    monkeypatch.setattr(gradio.Blocks, "launch", lambda self: launched.append(self))
    monkeypatch.chdir(tmp_path)
    assert runpy.run_path(str(space / "app.py"))["demo"] is launched[0]
    samples = [block for block in launched[0].blocks.values() if isinstance(block, gradio.Dataset)]
    assert [block.samples for block in samples] == [[["a dog"], ['a "man"']]]
    with pytest.raises(ValueError, match="space' is not empty"):
        demo_app.write_space(saved, space)


def test_a_space_for_a_model_on_the_hub(saved, tmp_path, monkeypatch):
    pytest.importorskip("gradio", reason="gradio is not installed")
    loaded = demo_app.load(saved)
    loaded[0].config.attention_normalizer = "entmax15"
    monkeypatch.setattr(demo_app, "load", lambda name: loaded)
    monkeypatch.setattr(demo_app, "version", lambda name: "1.2+cpu")
    demo_app.write_space("someone/words", tmp_path / "space", "Words")
    assert "load('someone/words'), title='Words', examples=[]" in (tmp_path / "space" / "app.py").read_text()
    assert not (tmp_path / "space" / "model").exists()
    front = (tmp_path / "space" / "README.md").read_text().split("---\n")[1]
    assert yaml.safe_load(front)["models"] == ["someone/words"]
    assert "entmax==1.2\n" in (tmp_path / "space" / "requirements.txt").read_text()


@pytest.mark.slow
def test_a_space_runs_by_itself(browser, saved, tmp_path):
    """In a process of its own that finds this package in the Space only."""
    model, tokenizer = demo_app.load(saved)
    demo_app.write_space(saved, tmp_path / "space", examples=["a dog"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {"GRADIO_SERVER_PORT": port, "GRADIO_SERVER_NAME": "127.0.0.1", "PYTHONPATH": ""}
    process = subprocess.Popen(
        [sys.executable, "-u", "app.py"],
        cwd=tmp_path / "space",
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if port in line:
                break
        else:
            pytest.fail("".join(lines))
        with opened(browser, f"http://127.0.0.1:{port}") as page:
            page.get_by_label("Text", exact=True).fill("a dog runs")
            shows(page, texts_of(model, tokenizer, "a dog runs", 4))
            page.frame_locator("iframe").get_by_text("dog").first.wait_for()
    finally:
        process.terminate()
        process.wait()
