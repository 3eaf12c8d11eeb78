"""The tasks in transformers' registry, and the pipelines as remote code."""

import types

import pytest
import transformers
from transformers import pipeline
from transformers import pipelines as library

from hf_attention_seq2seq import pipelines
from hf_attention_seq2seq.publishing import write_code

from .pipeline_helpers import CLASSES, NATIVE, SHORT, TEXTS, TOKENIZER, make_model, make_pipeline


def test_tasks_are_there_and_registering_again_changes_nothing():
    pipelines.register_pipelines()
    before = dict(library.PIPELINE_REGISTRY.supported_tasks), library.PIPELINE_REGISTRY.check_task
    pipelines.register_pipelines()
    assert (library.PIPELINE_REGISTRY.supported_tasks, library.PIPELINE_REGISTRY.check_task) == before
    model = make_model("t5")
    for task in [*CLASSES, "translation_en_to_de"]:
        name = task.split("_")[0]
        pipe = pipeline(task, model=model, tokenizer=TOKENIZER, device="cpu")
        assert type(pipe) is (NATIVE[name] or CLASSES[name])
        assert pipe(TEXTS, **SHORT) == make_pipeline(model, name)(TEXTS, **SHORT)
        assert "default" in library.check_task(task)[1]
    assert library.check_task("translation_en_to_de")[2] == ("en", "de")
    for task in ("translation", "translation_cn_to_ar"):
        with pytest.raises(ValueError):
            pipeline(task)  # there is no default checkpoint
    for task in ("translation_en", "translation_en_de", "translation_en_in_de"):
        with pytest.raises(KeyError, match="translation_XX_to_YY"):
            pipeline(task, model=model, tokenizer=TOKENIZER)
    with pytest.raises(KeyError, match="translations"):
        pipeline("translations", model=model, tokenizer=TOKENIZER)


def test_a_saved_pipeline_is_model_and_tokenizer(tmp_path):
    pipe = make_pipeline("marian", **SHORT)
    pipe.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    again = pipeline("translation", model=str(tmp_path), device="cpu", **SHORT)
    assert again(TEXTS) == pipe(TEXTS)


@pytest.mark.parametrize("change", ["signature", "frozen"])
def test_a_changed_library_gives_a_warning(monkeypatch, caplog, change):
    registry = library.PipelineRegistry({}, {})
    removed = dict.fromkeys(CLASSES, "gone")
    if change == "signature":
        monkeypatch.setattr(registry, "register_pipeline", lambda task: None)
    monkeypatch.setattr(library, "PIPELINE_REGISTRY", registry)
    monkeypatch.setattr(library, "REMOVED_TASKS", types.MappingProxyType(removed), raising=False)
    pipelines.register_pipelines()
    assert f"transformers {transformers.__version__} does not accept the tasks" in caplog.text
    assert "TranslationPipeline(model=model, tokenizer=tokenizer)" in caplog.text
    assert not any(hasattr(pipeline_class, "_registered_impl") for pipeline_class in CLASSES.values())


def test_as_remote_code(tmp_path, monkeypatch):
    """A repository of another model that brings the pipelines along works for those who trust it."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    repository = tmp_path / "repository"
    model = make_model("bart")
    expected = make_pipeline(model)(TEXTS, **SHORT)
    entry = {"impl": "remote_code.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"]}
    model.config.custom_pipelines = {"translation": entry}
    model.save_pretrained(repository)
    TOKENIZER.save_pretrained(repository)
    write_code(repository)
    trusting = pipeline("translation", model=str(repository), trust_remote_code=True, device="cpu")
    assert type(trusting).__module__.startswith("transformers_modules")
    assert trusting(TEXTS, **SHORT) == expected
    assert trusting("a dog", return_alignments=True, **SHORT)[0]["alignment"]["source_tokens"]
    named = pipeline("translation", model=str(repository), pipeline_class=CLASSES["translation"], device="cpu")
    assert named(TEXTS, **SHORT) == expected
