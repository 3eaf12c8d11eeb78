"""
RNN encoder-decoders with the attention mechanisms of the RNN era, as Hugging Face Transformers models.

Importing this package registers its configuration, models, tokenizer and pipelines with transformers.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from .cache import AttentionSeq2SeqCache
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
from .scoring import Score, register_score
from .tokenization_attention_seq2seq import AttentionSeq2SeqTokenizer
from .visualization import plot_alignment

__version__ = "0.1.0"


def register() -> None:
    """Registers everything with transformers' Auto classes and pipelines; called on import, harmless if repeated."""
    AutoConfig.register(AttentionSeq2SeqConfig.model_type, AttentionSeq2SeqConfig, exist_ok=True)
    AutoModel.register(AttentionSeq2SeqConfig, AttentionSeq2SeqModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration, exist_ok=True)
    AutoTokenizer.register(AttentionSeq2SeqConfig, fast_tokenizer_class=AttentionSeq2SeqTokenizer, exist_ok=True)
    register_pipelines()


register()

__all__ = [
    "PRESETS",
    "AttentionSeq2SeqCache",
    "AttentionSeq2SeqConfig",
    "AttentionSeq2SeqEnsemble",
    "AttentionSeq2SeqForConditionalGeneration",
    "AttentionSeq2SeqModel",
    "AttentionSeq2SeqPreTrainedModel",
    "AttentionSeq2SeqTokenizer",
    "Score",
    "SummarizationPipeline",
    "Text2TextGenerationPipeline",
    "TranslationPipeline",
    "beam_penalties",
    "plot_alignment",
    "register",
    "register_score",
]
