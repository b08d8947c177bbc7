"""Which tokens are drafted, and how many."""

import random

import pytest

from genai_server.engine.scheduling.drafts import (
    MAX_LENGTH,
    NO_DRAFT,
    AnswerMemory,
    Draft,
    Drafter,
    Match,
    TextIndex,
    fit_drafts,
)

# Prompt tokens without repetition.
PROMPT = list(range(100, 120))


def _draft(prompt: list[int], answer: list[int], *, prediction: list[int] | None = None, most: int = 15) -> list[int]:
    return list(Drafter(prompt, prediction or []).draft([*prompt, *answer], most).tokens)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 1]])
def test_text_without_repetition_gives_no_draft(tokens: list[int]) -> None:
    assert _draft(PROMPT, tokens) == []
    assert _draft([7], tokens) == []


REPEATS = [1, 2, 3, 7, 2, 3, 8, 2, 3, 9, 50]


@pytest.mark.parametrize(
    ("prompt", "answer", "most", "draft"),
    [
        (PROMPT, [1, 103, 104], 15, PROMPT[5:20]),
        (PROMPT, [1, 103, 104], 3, PROMPT[5:8]),
        (PROMPT, [1, 103], 15, []),  # one equal token is no match
        (REPEATS, [1, 2, 3], 1, [7]),  # the longest match
        (REPEATS, [60, 2, 3], 1, [9]),  # the last one
        (PROMPT, [5, 6, 7, 8, 9, 5, 6], 3, [7, 8, 9]),  # of the answer itself
        (PROMPT, [1, 2, 3, 1, 2, 3, 1], 7, [2, 3, 1, 2, 3, 1, 2]),  # further than the loop has come
    ],
)
def test_continuation_of_the_last_two_tokens_is_drafted(
    prompt: list[int], answer: list[int], most: int, draft: list[int]
) -> None:
    assert _draft(prompt, answer, most=most) == draft


def test_prediction_is_drafted_from_its_start_to_its_end() -> None:
    drafter = Drafter(PROMPT, [1, 2, 3, 4])
    assert drafter.draft(PROMPT, 15).tokens == [1, 2, 3, 4]
    assert drafter.draft([*PROMPT, 1], 15).tokens == [2, 3, 4]
    assert drafter.draft([*PROMPT, 1, 2, 3, 4], 15).tokens in ([], ())


def test_a_prediction_is_found_again_after_what_differs() -> None:
    prediction = list(range(1, 30))
    assert _draft(PROMPT, [1, 2, 3, 60, 61, 6, 7], prediction=prediction, most=3) == [8, 9, 10]


def test_draft_continues_where_the_last_one_came_from() -> None:
    first, second = [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9, 5, 6, 8]
    drafter = Drafter([*first, 50, *second, 60], [])
    tokens = [*first, 50, *second, 60, 3, 4]
    assert drafter.draft(tokens, 1).tokens == [5]
    for token, draft in ((5, 6), (6, 7)):
        tokens.append(token)
        assert drafter.draft(tokens, 1).tokens == [draft]
    # After the same end alone, the last place is drafted from.
    assert _draft([*first, 50, *second, 60], [5, 6], most=1) == [8]


def test_no_more_is_drafted_than_the_answer_may_have() -> None:
    for most in range(17):
        assert len(_draft(PROMPT, [1, 102, 103], most=most)) <= min(most, MAX_LENGTH)
    assert _draft(PROMPT, [1, 102, 103], most=0) == []
    assert _draft(PROMPT, [1, 102, 103], most=-1) == []


def fitted(draft: Draft, seconds: float) -> list[int]:
    """The tokens of a draft that a pass reads; each further one takes this multiple of the time of the first."""
    (length,) = fit_drafts([draft], [0.0, *(1 + seconds * number for number in range(16))]).lengths
    return list(draft.tokens[:length])


def _answer(drafter: Drafter, wanted: list[int], seconds: float) -> tuple[int, int]:
    """The numbers of drafted and accepted tokens of an answer; each further token of a pass takes this multiple of the
    time of the first.
    """
    tokens, drafted, accepted = list(PROMPT), 0, 0
    while wanted:
        draft = fitted(drafter.draft(tokens, len(wanted) - 1), seconds)
        right = next((n for n, pair in enumerate(zip(draft, wanted, strict=False)) if pair[0] != pair[1]), len(draft))
        if draft:
            drafter.count(len(draft), right)
        tokens += wanted[: right + 1]
        wanted = wanted[right + 1 :]
        drafted, accepted = drafted + len(draft), accepted + right
    return drafted, accepted


def test_what_follows_a_replaced_token_is_drafted() -> None:
    drafter = Drafter(PROMPT, [])
    answer = [1, 104, 105]
    assert drafter.draft([*PROMPT, *answer], 2).tokens == [106, 107]
    assert drafter.draft([*PROMPT, *answer, 2], 2) == NO_DRAFT
    assert drafter.draft([*PROMPT, *answer, 2, 107], 2).tokens == [108, 109]


def test_a_text_that_repeats_its_prompt_is_nearly_all_drafted() -> None:
    wanted = PROMPT * 10
    drafted, accepted = _answer(Drafter(PROMPT, []), wanted, 0.2)
    assert accepted > 0.8 * len(wanted)
    assert drafted < 1.1 * accepted


def _pairs(number: int) -> list[int]:
    """Pairs of tokens that are repeated, in any order, each with another token behind it."""
    chance = random.Random(4)
    firsts = (10 * chance.randrange(50) for _ in range(number))
    return [token for first in firsts for token in (first, first + 1, chance.randrange(10**3, 10**6))]


def test_a_text_whose_drafts_are_wrong_has_fewer_and_fewer() -> None:
    wanted = _pairs(500)
    drafted, accepted = _answer(Drafter(PROMPT, []), wanted, 0.3)
    assert drafted < 0.02 * len(wanted)
    assert accepted <= drafted


def test_drafts_that_are_right_again_are_made_again() -> None:
    _, accepted = _answer(Drafter(PROMPT, []), _pairs(60) + PROMPT * 20, 0.2)
    assert accepted > 0.6 * 20 * len(PROMPT)


def test_drafts_are_rare_if_time_grows_with_tokens() -> None:
    drafted, _ = _answer(Drafter(PROMPT, []), PROMPT * 20, 1.0)
    assert drafted < 0.2 * 20 * len(PROMPT)
    assert fitted(Drafter(PROMPT, []).draft([*PROMPT, 1, 102, 103], 15), 1.0) == [104]  # tried once


def test_forced_tokens_are_drafted_before_repetitions() -> None:
    drafter = Drafter(PROMPT, [])
    assert drafter.draft([*PROMPT, 103, 104], 15, forced=[7, 8, 9]).tokens == [7, 8, 9]
    assert drafter.draft([*PROMPT, 103, 104], 2, forced=[7, 8, 9]).tokens == [7, 8]
    assert drafter.draft([*PROMPT, 103, 104], 15).tokens == PROMPT[5:20]


def test_forced_tokens_are_continued_as_in_the_text() -> None:
    drafter = Drafter(PROMPT, [])
    assert drafter.draft([*PROMPT, 103, 104], 4, forced=[105, 106]).tokens == [105, 106, 107, 108]
    assert drafter.draft([*PROMPT, 103, 104], 4, forced=[105, 106, 107, 108, 9]).tokens == [105, 106, 107, 108]
    assert drafter.draft([*PROMPT, 103, 104], 4, forced=[105, 9]).tokens == [105, 9]


def test_forced_tokens_that_are_rejected_are_no_longer_drafted() -> None:
    drafter, answer = Drafter(PROMPT, []), [1]
    for _ in range(20):
        drafted = fitted(drafter.draft([*PROMPT, *answer], 15, forced=[7, 8, 9]), 0.25)
        if not drafted:
            break
        drafter.count(len(drafted), 0)
        answer.append(2)
    assert not drafted


# drafts from earlier answers

ANSWER = list(range(1, 60))


def earlier(*answers: list[int]) -> AnswerMemory:
    memory = AnswerMemory(10**6)
    for answer in answers:
        memory.add("key", [500], answer)
    return memory


def from_earlier(memory: AnswerMemory, prompt: list[int], answer: list[int], most: int = 4) -> list[int]:
    return list(Drafter(prompt, [], memory.of("key")).draft([*prompt, *answer], most).tokens)


def test_earlier_answer_is_drafted_after_four_equal_tokens() -> None:
    memory = earlier(ANSWER)
    assert from_earlier(memory, PROMPT, [10, 11, 12]) == []
    assert from_earlier(memory, PROMPT, [10, 11, 12, 13]) == [14, 15, 16, 17]
    assert from_earlier(memory, PROMPT, ANSWER[-5:-1]) == [59]  # not beyond its end
    assert from_earlier(memory, PROMPT, ANSWER[-4:]) == []


def test_same_question_is_answered_from_the_start() -> None:
    memory = AnswerMemory(10**6)
    memory.add("key", PROMPT, ANSWER)
    assert from_earlier(memory, PROMPT, []) == [1, 2, 3, 4]
    assert from_earlier(memory, [*PROMPT, 7], []) == []


def test_longer_match_of_own_text_and_earlier_answers_wins() -> None:
    own = [5, 6, 7, 8, 9, 200, 300]
    memory = earlier([5, 6, 7, 8, 9, 100])
    assert from_earlier(memory, [300, *own], [5, 6, 7, 8, 9], 1) == [200]  # of equal ones its own
    assert from_earlier(memory, [300, *own[1:]], [5, 6, 7, 8, 9], 1) == [100]
    assert from_earlier(earlier([7, 8, 9, 100]), own, [6, 7, 8, 9], 1) == [200]


def test_acceptance_of_earlier_answers_is_counted_apart() -> None:
    drafter = Drafter(PROMPT, [], earlier([1, 2, 3, 4, 5, 6]).of("key"))
    tokens = [*PROMPT, 1, 2, 3, 4]
    before = drafter.draft(tokens, 2)
    assert list(before.tokens) == [5, 6]
    drafter.count(2, 0)
    assert drafter.draft(tokens, 2).share < before.share
    own = drafter.draft([*tokens, 104, 105], 2)
    assert (list(own.tokens), own.share) == ([106, 107], Drafter(PROMPT, []).draft([*PROMPT, 104, 105], 2).share)


def test_cleared_answers_are_no_longer_drafted() -> None:
    memory = earlier(ANSWER)
    drafter = Drafter(PROMPT, [], memory.of("key"))
    assert list(drafter.draft([*PROMPT, *ANSWER[:10]], 2).tokens) == [11, 12]
    memory.clear()
    assert drafter.draft([*PROMPT, *ANSWER[:11]], 2) == NO_DRAFT
    memory.add("key", [500], [11, 12, 13, 14, 30])
    assert drafter.draft([*PROMPT, *ANSWER[:12]], 2) == NO_DRAFT
    assert list(drafter.draft([*PROMPT, *ANSWER[:14]], 2).tokens) == [30]


def test_text_that_repeats_an_earlier_answer_is_mostly_drafted() -> None:
    chance = random.Random(4)
    file = [chance.randrange(10**5) for _ in range(400)]
    edited = [10**6 + n if n % 40 == 20 else token for n, token in enumerate(file)]
    drafted, accepted = _answer(Drafter(PROMPT, [], earlier(file).of("key")), edited, 0.2)
    assert accepted > 0.7 * len(edited)
    assert drafted < 1.3 * accepted
    assert _answer(Drafter(PROMPT, []), edited, 0.2) == (0, 0)


def test_text_without_matches_is_looked_up_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[int] = []
    longest_match = TextIndex.longest_match

    def count(index: TextIndex, end: list[int], followed: Match | None = None) -> Match | None:
        lookups.append(1)
        return longest_match(index, end, followed)

    monkeypatch.setattr(TextIndex, "longest_match", count)
    drafter = Drafter(PROMPT, [], earlier(ANSWER).of("key"))
    tokens = list(PROMPT)
    for token in range(1000, 1200):
        tokens.append(token)
        drafter.draft(tokens, 15)
    assert 2 * 200 / 4 < len(lookups) < 200
    drafts = []
    for token in ANSWER:
        tokens.append(token)
        drafts.append(list(drafter.draft(tokens, 1).tokens))
    assert drafts[8:-1] == [[token] for token in ANSWER[9:]]


# drafts of several sequences

LINEAR = [float(number) for number in range(100)]
FLAT = [1.0] * 100


def drafts(*shares: float, is_due: bool = False) -> list[Draft]:
    return [Draft([1] * 15, share, is_due) for share in shares]


def test_budget_goes_to_the_likeliest_tokens_of_all_sequences() -> None:
    steep = [10.0] * 8 + [100.0] * 50
    assert fit_drafts(drafts(0.9, 0.1, 0.9), steep).lengths == [2, 0, 2]
    assert fit_drafts(drafts(0.7, 0.9, 0.0), steep).lengths == [1, 3, 0]


def test_draft_is_as_long_as_passes_of_all_sequences_allow() -> None:
    assert fit_drafts(drafts(0.9, 0.9), FLAT).lengths == [15, 15]
    assert sum(fit_drafts(drafts(0.9, 0.9), FLAT[:13]).lengths) == 10
    assert fit_drafts(drafts(0.9, 0.9), FLAT[:3]).lengths == [0, 0]


def test_no_sequence_has_a_draft_that_does_not_pay() -> None:
    assert fit_drafts(drafts(0.9, 0.9), LINEAR).lengths == [0, 0]
    assert fit_drafts([NO_DRAFT, NO_DRAFT], FLAT).lengths == [0, 0]


def test_due_draft_is_tried_with_one_token() -> None:
    assert fit_drafts([*drafts(0.1, is_due=True), *drafts(0.1), NO_DRAFT], LINEAR).lengths == [1, 0, 0]
    assert fit_drafts(drafts(0.1, is_due=True), LINEAR[:2]).lengths == [0]
