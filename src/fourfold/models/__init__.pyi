# Written by scripts/type_stubs.py; do not edit.

from typing import Any

from fourfold.layers.base_model import Model as Model
from fourfold.models.baselines.convolution import ConvolutionalLM as ConvolutionalLM
from fourfold.models.baselines.convolution import ConvolutionalLMConfig as ConvolutionalLMConfig
from fourfold.models.baselines.ladder import LadderClassifier as LadderClassifier
from fourfold.models.baselines.ladder import LadderClassifierConfig as LadderClassifierConfig
from fourfold.models.baselines.ladder import LadderLM as LadderLM
from fourfold.models.baselines.ladder import LadderLMConfig as LadderLMConfig
from fourfold.models.baselines.resnet import ResNet as ResNet
from fourfold.models.baselines.resnet import ResNetConfig as ResNetConfig
from fourfold.models.causal_lm.classifier import CausalClassifier as CausalClassifier
from fourfold.models.causal_lm.classifier import CausalClassifierConfig as CausalClassifierConfig
from fourfold.models.causal_lm.model import CausalLM as CausalLM
from fourfold.models.causal_lm.model import CausalLMConfig as CausalLMConfig
from fourfold.models.contrastive.clip import CLIP as CLIP
from fourfold.models.contrastive.clip import CLIPConfig as CLIPConfig
from fourfold.models.contrastive.siglip import SigLIP as SigLIP
from fourfold.models.contrastive.siglip import SigLIPConfig as SigLIPConfig
from fourfold.models.electra.model import Electra as Electra
from fourfold.models.electra.model import ElectraConfig as ElectraConfig
from fourfold.models.electra.model import ElectraDiscriminator as ElectraDiscriminator
from fourfold.models.electra.model import ElectraDiscriminatorConfig as ElectraDiscriminatorConfig
from fourfold.models.electra.model import ElectraGenerator as ElectraGenerator
from fourfold.models.electra.model import ElectraGeneratorConfig as ElectraGeneratorConfig
from fourfold.models.encoder_decoder.composite import (
    CompositeEncoderDecoder as CompositeEncoderDecoder,
)
from fourfold.models.encoder_decoder.composite import ImageToTextConfig as ImageToTextConfig
from fourfold.models.encoder_decoder.composite import TextToTextConfig as TextToTextConfig
from fourfold.models.encoder_decoder.model import EncoderDecoder as EncoderDecoder
from fourfold.models.encoder_decoder.model import EncoderDecoderConfig as EncoderDecoderConfig
from fourfold.models.encoder_decoder.t5 import T5 as T5
from fourfold.models.encoder_decoder.t5 import T5Config as T5Config
from fourfold.models.masked_lm.classifiers import SequenceClassifier as SequenceClassifier
from fourfold.models.masked_lm.classifiers import (
    SequenceClassifierConfig as SequenceClassifierConfig,
)
from fourfold.models.masked_lm.classifiers import SpanExtractor as SpanExtractor
from fourfold.models.masked_lm.classifiers import SpanExtractorConfig as SpanExtractorConfig
from fourfold.models.masked_lm.classifiers import TokenClassifier as TokenClassifier
from fourfold.models.masked_lm.classifiers import TokenClassifierConfig as TokenClassifierConfig
from fourfold.models.masked_lm.model import MaskedLM as MaskedLM
from fourfold.models.masked_lm.model import MaskedLMConfig as MaskedLMConfig
from fourfold.models.recurrent.captioner import RecurrentCaptioner as RecurrentCaptioner
from fourfold.models.recurrent.captioner import RecurrentCaptionerConfig as RecurrentCaptionerConfig
from fourfold.models.recurrent.encoder_decoder import (
    RecurrentEncoderDecoder as RecurrentEncoderDecoder,
)
from fourfold.models.recurrent.encoder_decoder import (
    RecurrentEncoderDecoderConfig as RecurrentEncoderDecoderConfig,
)
from fourfold.models.recurrent.hierarchical import HierarchicalClassifier as HierarchicalClassifier
from fourfold.models.recurrent.hierarchical import (
    HierarchicalClassifierConfig as HierarchicalClassifierConfig,
)
from fourfold.models.recurrent.language_model import RecurrentClassifier as RecurrentClassifier
from fourfold.models.recurrent.language_model import (
    RecurrentClassifierConfig as RecurrentClassifierConfig,
)
from fourfold.models.recurrent.language_model import RecurrentLM as RecurrentLM
from fourfold.models.recurrent.language_model import RecurrentLMConfig as RecurrentLMConfig
from fourfold.models.registry import create as create
from fourfold.models.registry import list_models as list_models
from fourfold.models.vit.masked_autoencoder import MaskedAutoencoder as MaskedAutoencoder
from fourfold.models.vit.masked_autoencoder import (
    MaskedAutoencoderConfig as MaskedAutoencoderConfig,
)
from fourfold.models.vit.model import ViT as ViT
from fourfold.models.vit.model import ViTConfig as ViTConfig
from fourfold.models.vit.segmenter import Segmenter as Segmenter
from fourfold.models.vit.segmenter import SegmenterConfig as SegmenterConfig

def __getattr__(name: str) -> Any: ...
