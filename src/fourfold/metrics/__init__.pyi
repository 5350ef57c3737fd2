# `lazy_names` of fourfold imports these names when they are first accessed.

from fourfold.metrics.base import Mean as Mean
from fourfold.metrics.base import lower_is_better as lower_is_better
from fourfold.metrics.caption_bleu import CaptionScores as CaptionScores
from fourfold.metrics.classification import ClassificationScores as ClassificationScores
from fourfold.metrics.classification import MultiLabelScores as MultiLabelScores
from fourfold.metrics.classification import RegressionScores as RegressionScores
from fourfold.metrics.entities import EntityScores as EntityScores
from fourfold.metrics.perplexity import Perplexity as Perplexity
from fourfold.metrics.retrieval import RetrievalScores as RetrievalScores
from fourfold.metrics.squad import Answer as Answer
from fourfold.metrics.squad import SquadScores as SquadScores
from fourfold.metrics.translation import TranslationScores as TranslationScores

__all__: list[str]
