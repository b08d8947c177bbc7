"""Makes the demo models for embeddings and reranking: small BERTs, on sentences by topic.

Texts of one topic mean something alike, texts of two do not.

Each run gives other weights: the trainer of the tokenizer breaks ties at random. If the models of a run are kept,
--record must write tests/apis/embeddings/demo_vectors.json again.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _models.environment import REPOSITORY
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer

from .shared import SEED, THREADS, Budget, Course, descend
from .tables import ALIASES, CAPITALS, ENDPOINTS, SETTINGS, expand, table

VOCABULARY, MAX_TOKENS = 2400, 256
WIDTHS = (128, 64, 32)
PAIRS, TEMPERATURE, RATE, WARM_UP = 64, 0.05, 2e-3, 0.1
RERANKED, RERANK_RATE = 24, 1e-3
EXPORT = REPOSITORY / "src" / "genai_server" / "hub" / "export_encoder.py"


@dataclass(frozen=True)
class Topic:
    """Queries and texts of one topic."""

    name: str
    queries: tuple[str, ...]
    texts: tuple[str, ...]


def make(budget: Budget, work: Path, fresh: Path) -> None:
    """Tokenizer, both models, export to two folders in `fresh`."""
    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)
    known = topics()
    tokenizer = make_tokenizer(known)
    embeddings = train_embeddings(tokenizer, known, budget)
    share = share_of_nearest(embeddings, tokenizer, known)
    print(f"{share:.0%} of the held-out queries have a text of their topic as the nearest")
    embeddings.config.matryoshka_dimensions = list(WIDTHS)
    reranker = train_reranker(tokenizer, known, budget, embeddings)
    reranker.config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    # The files of sentence-transformers' directory, one of which is empty.
    shutil.copytree(Path(__file__).with_name("pooled_files"), work / "embeddings")
    (work / "embeddings" / "2_Normalize").mkdir()
    for name, model in (("embeddings", embeddings), ("reranker", reranker)):
        model.save_pretrained(work / name)
        tokenizer.save_pretrained(work / name)
        command = [sys.executable, str(EXPORT), str(work / name), str(fresh / f"demo-{name}"), "fp32"]
        subprocess.run(command, check=True)


def record(work: Path, file: Path) -> None:
    """Write some vectors and scores of sentence-transformers for the trained weights."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    texts = ["rain", "Which of these is about France?", "Paris is the capital of France.", "Kraków 🙂 " * 20]
    pairs = [[texts[1], text] for text in texts] + [["rain", "It will rain all afternoon."]]
    vectors = SentenceTransformer(str(work / "embeddings"), device="cpu").encode(texts)
    scores = CrossEncoder(str(work / "reranker"), device="cpu").predict(pairs)
    found = {"texts": texts, "vectors": _short(vectors.tolist()), "pairs": pairs, "scores": _short(scores.tolist())}
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


def _short(value: Any) -> Any:
    return [_short(inner) for inner in value] if isinstance(value, list) else round(value, 6)


def topics() -> list[Topic]:
    """All topics: the countries, everyday things, and what the server answers to."""
    known = table("topics")
    found = []
    for country, capital in CAPITALS.items():
        names = [country, *ALIASES.get(country, ())]
        queries, texts = (
            tuple(frame.format(country=name, capital=capital) for frame in known["country"][kind] for name in names)
            for kind in ("queries", "texts")
        )
        found.append(Topic(country, queries, texts))
    for name, topic in known["topics"].items():
        found.append(Topic(name, tuple(topic["queries"]), tuple(topic["texts"])))
    rng = random.Random(0)
    for answers, kind in ((ENDPOINTS, "endpoint"), (SETTINGS, "setting")):
        for name, said in answers.items():
            asked = {f"Which {kind} {expand(said['does'], rng)}?" for _ in range(24)}
            answer = said["answer"]
            found.append(Topic(name, tuple(sorted(asked)), (answer, answer.rstrip("."), f"In short: {answer}")))
    return found


def is_held_out(text: str) -> bool:
    """Whether a text is left out of training, to be asked for in the evaluation."""
    return sum(text.encode()) % 11 == 0


def make_tokenizer(topics: list[Topic]) -> BertTokenizer:
    """A WordPiece tokenizer as BERT's, without case."""
    names = ["input_ids", "token_type_ids", "attention_mask"]
    untrained = BertTokenizer(model_max_length=MAX_TOKENS, model_input_names=names)
    texts = [text for topic in topics for text in (*topic.queries, *topic.texts)]
    return untrained.train_new_from_iterator(texts, VOCABULARY, min_frequency=1)


def make_config(tokenizer: BertTokenizer, **settings: int) -> BertConfig:
    """A small BERT."""
    return BertConfig(vocab_size=len(tokenizer), **table("models")["pooled"], **settings)


def train_embeddings(tokenizer: BertTokenizer, topics: list[Topic], budget: Budget) -> BertModel:
    """A model whose vectors of a topic's query and text are near each other, and far from those of other topics.

    The loss is that of InfoNCE with all other texts of the batch, for the whole vector and for its beginnings.
    """
    model = BertModel(make_config(tokenizer), add_pooling_layer=False)
    rng = random.Random(SEED)
    for course, optimizer in _courses(model, budget, RATE):
        pairs = _pairs(topics, rng, PAIRS)
        queries, texts = (_vectors(model, tokenizer, side) for side in zip(*pairs, strict=True))
        wanted = torch.arange(len(pairs))
        loss = torch.zeros(())
        for width in WIDTHS:
            near = functional.normalize(queries[:, :width]) @ functional.normalize(texts[:, :width]).T / TEMPERATURE
            loss = loss + functional.cross_entropy(near, wanted) + functional.cross_entropy(near.T, wanted)
        descend(model, loss, [optimizer])
        course.note(loss=loss.item())
    return model.eval()


def train_reranker(
    tokenizer: BertTokenizer, topics: list[Topic], budget: Budget, first: BertModel
) -> BertForSequenceClassification:
    """A model that tells whether a text is about a query: of each pair with a text of the topic, and of two others.

    It begins with the weights of the model for embeddings, which knows already what belongs together.
    """
    model = BertForSequenceClassification(make_config(tokenizer, num_labels=1))
    model.bert.load_state_dict(first.state_dict(), strict=False)
    rng = random.Random(SEED)
    for course, optimizer in _courses(model, budget, RERANK_RATE):
        pairs = _pairs(topics, rng, RERANKED)
        others = [text for _, text in pairs]
        # Only those of the first third belong together.
        texts = [text for turn in (0, 1, 7) for text in others[turn:] + others[:turn]]
        given = tokenizer([query for query, _ in pairs] * 3, texts, padding=True, return_tensors="pt")
        logits = model(**given).logits[:, 0]
        wanted = (torch.arange(len(texts)) < len(pairs)).float()
        loss = functional.binary_cross_entropy_with_logits(logits, wanted)
        descend(model, loss, [optimizer])
        course.note(loss=loss.item())
    return model.eval()


@torch.no_grad()  # type: ignore[untyped-decorator]
def share_of_nearest(model: BertModel, tokenizer: BertTokenizer, topics: list[Topic]) -> float:
    """How many held-out queries have a text of their own topic as the nearest of all topics' held-out texts."""
    texts = [(topic.name, text) for topic in topics for text in topic.texts if is_held_out(text)]
    queries = [(topic.name, query) for topic in topics for query in topic.queries if is_held_out(query)]
    queries = [pair for pair in queries if pair[0] in {name for name, _ in texts}]
    asked, known = (_vectors(model, tokenizer, [text for _, text in side]) for side in (queries, texts))
    best = (functional.normalize(asked) @ functional.normalize(known).T).argmax(dim=1).tolist()
    right = sum(texts[int(number)][0] == name for number, (name, _) in zip(best, queries, strict=True))
    return float(right / len(queries))


def _pairs(topics: list[Topic], rng: random.Random, count: int) -> list[tuple[str, str]]:
    """A query, or a text, and a text of each of some topics."""
    found = []
    for topic in rng.sample(topics, count):
        known = [text for text in topic.texts if not is_held_out(text)] or list(topic.texts)
        asked = [query for query in topic.queries if not is_held_out(query)] or list(topic.queries)
        first = rng.choice(asked if rng.random() < 0.7 else known)
        found.append((first, rng.choice(known)))
    return found


def _vectors(model: BertModel, tokenizer: BertTokenizer, texts: Sequence[str]) -> torch.Tensor:
    given = tokenizer(list(texts), padding=True, return_tensors="pt")
    states = model(**given).last_hidden_state
    weights = given["attention_mask"].unsqueeze(-1).float()
    mean: torch.Tensor = (states * weights).sum(1) / weights.sum(1)
    return mean


def _courses(model: torch.nn.Module, budget: Budget, rate: float) -> Iterator[tuple[Course, Any]]:
    """Before each step its course and optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    model.train()
    course = Course(budget, [optimizer], rate, fall=1 - WARM_UP, warm_up=WARM_UP)
    for _ in course.steps():
        yield course, optimizer
