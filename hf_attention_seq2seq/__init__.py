"""
RNN encoder-decoders with the attention mechanisms of the RNN era, as Hugging Face Transformers models.

Importing this package registers its configuration, models, tokenizer and pipelines with transformers.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from .alignment import Alignment, align, alignments_from_generate, parse_pharaoh, symmetrize, to_pharaoh
from .alignment_page import AlignmentView, alignment_html, save_alignment_html
from .cache import AttentionSeq2SeqCache
from .classification import AttentionSeq2SeqForSequenceClassification
from .compat import name_text_classifier
from .configuration_attention_seq2seq import PRESETS, AttentionSeq2SeqConfig
from .ensemble import AttentionSeq2SeqEnsemble
from .modeling_attention_seq2seq import (
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqModel,
    AttentionSeq2SeqPreTrainedModel,
)
from .penalties import beam_penalties
from .pipelines import (
    SummarizationPipeline,
    Text2TextGenerationPipeline,
    TranslationPipeline,
    register_pipelines,
)
from .publishing import VERSION
from .quantization import quantize_int8
from .scoring import Score, register_score
from .tokenization_attention_seq2seq import AttentionSeq2SeqTokenizer
from .unknown_words import learn_lexicon, repeated_and_untranslated, replace_unknown
from .visualization import animate_alignment, plot_alignment, plot_document

__version__ = VERSION


def register() -> None:
    """Registers everything with transformers' Auto classes and pipelines; called on import, harmless if repeated."""
    AutoConfig.register(AttentionSeq2SeqConfig.model_type, AttentionSeq2SeqConfig, exist_ok=True)
    AutoModel.register(AttentionSeq2SeqConfig, AttentionSeq2SeqModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration, exist_ok=True)
    AutoModelForSequenceClassification.register(
        AttentionSeq2SeqConfig, AttentionSeq2SeqForSequenceClassification, exist_ok=True
    )
    name_text_classifier(AttentionSeq2SeqConfig.model_type, AttentionSeq2SeqForSequenceClassification.__name__)
    AutoTokenizer.register(AttentionSeq2SeqConfig, fast_tokenizer_class=AttentionSeq2SeqTokenizer, exist_ok=True)
    register_pipelines()


register()

__all__ = [
    "PRESETS",
    "Alignment",
    "AlignmentView",
    "AttentionSeq2SeqCache",
    "AttentionSeq2SeqConfig",
    "AttentionSeq2SeqEnsemble",
    "AttentionSeq2SeqForConditionalGeneration",
    "AttentionSeq2SeqForSequenceClassification",
    "AttentionSeq2SeqModel",
    "AttentionSeq2SeqPreTrainedModel",
    "AttentionSeq2SeqTokenizer",
    "Score",
    "SummarizationPipeline",
    "Text2TextGenerationPipeline",
    "TranslationPipeline",
    "align",
    "alignment_html",
    "alignments_from_generate",
    "animate_alignment",
    "beam_penalties",
    "learn_lexicon",
    "parse_pharaoh",
    "plot_alignment",
    "plot_document",
    "quantize_int8",
    "register",
    "register_score",
    "repeated_and_untranslated",
    "replace_unknown",
    "save_alignment_html",
    "symmetrize",
    "to_pharaoh",
]
