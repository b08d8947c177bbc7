"""Ask a demo model for pictures about drawings, greedily, and print the share of exactly right answers.

Pictures and phrasings are apart from those of the training; that of the phrasings is checked first.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from _models.card import write_table
from _models.environment import REPOSITORY, ensure_environment

SEED = 77  # of the pictures; the training has others
ASKED = 100  # questions of each ability
Result = tuple[bool, str, str]  # right?, the question, the answer
# Texts and encoded pictures of a message, in their order.
Parts = Sequence[str | bytes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = REPOSITORY / "models" / "demo-vision"
    parser.add_argument("directory", type=Path, nargs="?", default=default, metavar="DIR")
    parser.add_argument("--only", help="one ability of the table")
    parser.add_argument("--wrong", action="store_true", help="print every wrong answer")
    parser.add_argument("--card", action="store_true", help="write the table into the directory's README.md")
    arguments = parser.parse_args()
    ensure_environment()
    check_phrasings()
    model = Model(arguments.directory)
    rows = []
    print(f"{'ability':<24}{'right':>7}{'asked':>7}{'share':>8}")
    for ability, asked in examinations().items():
        if arguments.only in (None, ability):
            results = list(asked(model))
            right = sum(result[0] for result in results)
            rows.append((ability, right, len(results)))
            print(f"{ability:<24}{right:>7}{len(results):>7}{100 * right / len(results):>7.1f}%", flush=True)
            for ok, question, answer in results:
                if arguments.wrong and not ok:
                    print(f"    {question!r} -> {answer!r}")
    if arguments.card and not arguments.only:
        write_table(arguments.directory / "README.md", rows)


def check_phrasings() -> None:
    """Raise ValueError if a phrasing of the evaluation is one of the training."""
    from _models.picture_phrasings import HELD_OUT, SMALL_TALK, TRAINED

    trained = {text.lower().rstrip("?.!") for texts in TRAINED.values() for text in texts}
    trained |= {text.lower().rstrip("?.!") for texts, _, _ in SMALL_TALK for text in texts}
    asked = [text for texts in HELD_OUT.values() for text in texts] + [t for _, texts, _ in SMALL_TALK for t in texts]
    if both := [text for text in asked if text.lower().rstrip("?.!") in trained]:
        raise ValueError(f"phrasings that the training text has: {both}")


class Model:
    """The model directory as onnxruntime-genai runs it."""

    def __init__(self, directory: Path) -> None:
        import onnxruntime_genai as og
        from _models.picture_batches import MARK
        from _models.template import load_template

        self._og, self._mark = og, MARK
        self._model = og.Model(str(directory))
        self._processor = self._model.create_multimodal_processor()
        self._template = load_template(directory / "chat_template.jinja")

    def answer(self, turns: Sequence[Parts]) -> str:
        """What it says last; every other turn is its own."""
        from _models.template import render

        texts = ["".join(part if isinstance(part, str) else self._mark for part in parts) for parts in turns]
        roles = ("user", "assistant")
        messages: list[dict[str, Any]] = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
        pictures = [part for parts in turns for part in parts if isinstance(part, bytes)]
        prompt = render(self._template, messages, None, answer_next=True)
        images = self._og.Images.open_bytes(*pictures) if pictures else None
        params = self._og.GeneratorParams(self._model)
        params.set_search_options(max_length=1024)
        generator = self._og.Generator(self._model, params)
        generator.set_inputs(self._processor(prompt, images=images))
        tokens: list[int] = []
        while not generator.is_done():
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
        return str(self._processor.decode(tokens)).removesuffix("<|im_end|>")


def _picture(rng: Random) -> tuple[Any, bytes]:
    """A scene and its picture as PNG."""
    from _models.drawings import draw, random_scene
    from _models.picture_batches import GRIDS, random_size

    width, height = random_size(rng.choices(list(GRIDS), list(GRIDS.values()))[0], rng)
    scene = random_scene(rng, width / height)
    encoded = io.BytesIO()
    draw(scene, width, height, rng).save(encoded, "PNG")
    return scene, encoded.getvalue()


def about(ability: str) -> Callable[[Model], Iterator[Result]]:
    """One question about one picture each."""

    def ask(model: Model) -> Iterator[Result]:
        from _models.picture_phrasings import HELD_OUT
        from _models.picture_questions import question

        rng, asked = Random(f"{SEED} {ability}"), 0
        while asked < ASKED:
            scene, encoded = _picture(rng)
            if made := question(ability, scene, HELD_OUT, rng):
                asked += 1
                answer = model.answer([[encoded, made.text]])
                yield answer == made.answer, f"{made.text} ({made.answer})", answer

    return ask


def follow_ups(model: Model) -> Iterator[Result]:
    """The second and the third question about a picture."""
    from _models.picture_phrasings import HELD_OUT
    from _models.picture_questions import questions

    rng = Random(f"{SEED} follow-ups")
    for _ in range(ASKED // 2):
        scene, encoded = _picture(rng)
        first, *others = questions(scene, HELD_OUT, rng, 3)
        turns: list[Parts] = [[encoded, first.text], [first.answer]]
        for made in others:
            answer = model.answer([*turns, [made.text]])
            yield answer == made.answer, f"{made.text} ({made.answer})", answer
            turns += [[made.text], [made.answer]]


def second_pictures(model: Model) -> Iterator[Result]:
    """A question about another picture after one about the first."""
    from _models.picture_phrasings import HELD_OUT
    from _models.picture_questions import questions

    rng = Random(f"{SEED} second pictures")
    for _ in range(ASKED):
        turns: list[Parts] = []
        for _ in range(2):
            scene, encoded = _picture(rng)
            made = questions(scene, HELD_OUT, rng, 1)[0]
            turns += [[encoded, made.text], [made.answer]]
        answer = model.answer(turns[:-1])
        yield answer == made.answer, f"{made.text} ({made.answer})", answer


def no_picture(model: Model) -> Iterator[Result]:
    """A question about a picture that was not attached."""
    from _models.drawings import random_scene
    from _models.picture_phrasings import HELD_OUT
    from _models.picture_questions import without_picture

    rng = Random(f"{SEED} no picture")
    for _ in range(ASKED):
        made = without_picture(random_scene(rng, 1.0), HELD_OUT, rng)
        answer = model.answer([[made.text]])
        yield answer == made.answer, made.text, answer


def small_talk(model: Model) -> Iterator[Result]:
    from _models.picture_phrasings import SMALL_TALK

    for _, texts, expected in SMALL_TALK:
        for text in texts:
            answer = model.answer([[text]])
            yield answer == expected, text, answer


def examinations() -> dict[str, Callable[[Model], Iterator[Result]]]:
    from _models.picture_questions import ABILITIES

    return {ability: about(ability) for ability in ABILITIES} | {
        "follow-up questions": follow_ups,
        "another picture": second_pictures,
        "no picture attached": no_picture,
        "small talk": small_talk,
    }


if __name__ == "__main__":
    main()
