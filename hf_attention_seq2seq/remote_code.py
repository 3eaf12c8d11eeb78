"""
The way into the copy of hf_attention_seq2seq that lies in a repository, for `trust_remote_code=True`.

Transformers copies a module out of a local folder together with those that it imports itself (5.x also with what these
import), so all of them are named here.
"""

# ruff: noqa: F401
from .additive import additive_energies
from .alignment import Alignment
from .attention import Attention
from .attention_types import build_attention
from .bridges import build_bridge
from .cache import AttentionSeq2SeqCache
from .checks import first_given
from .classification import AttentionSeq2SeqForSequenceClassification
from .compat import transformers_version
from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .coverage import COVERAGES
from .decoders import RecurrentDecoder
from .encoder_fields import ENCODER_TYPES
from .encoder_types import ENCODERS
from .encoders import RecurrentEncoder
from .generation import RecurrentGenerationMixin
from .hard_attention import HardSelection
from .hierarchical import HierarchicalEncoder
from .hierarchical_attention import HierarchicalAttention
from .layout import PaddingLayout
from .loading import check_source
from .losses import sequence_loss
from .mixtures import Mixture
from .modeling_attention_seq2seq import AttentionSeq2SeqForConditionalGeneration, AttentionSeq2SeqModel
from .monotonic import MonotonicAlignment
from .normalizers import NORMALIZERS
from .packed import faster_products
from .pipelines import SummarizationPipeline, Text2TextGenerationPipeline, TranslationPipeline
from .pointer import PointerGenerator
from .pooling import AttentionPooling
from .presets import PRESETS
from .publishing import VERSION
from .pyramidal import PyramidalEncoder
from .quantization import quantize_int8
from .ragged import decode_ragged
from .readouts import READOUTS
from .recurrent import RecurrentLayer
from .scoring import SCORES
from .search import beam_search
from .self_attention import SelfAttentionEncoder
from .spans import SPANS
from .step_products import shared_gradients
from .tokenization_attention_seq2seq import AttentionSeq2SeqTokenizer
from .unknown_words import replace_unknown
from .vocabulary import train_vocabulary
