"""Which tokens are drafted, and how many."""

import random

import pytest

from genai_server.engine.scheduling.draft_lengths import fit_drafts
from genai_server.engine.scheduling.drafts import MAX_LENGTH, NO_DRAFT, AnswerMemory, Draft, TextDrafts

# Prompt tokens without repetition.
PROMPT = list(range(100, 120))


def _draft(prompt: list[int], answer: list[int], *, prediction: list[int] | None = None, most: int = 15) -> list[int]:
    return list(TextDrafts(prompt, prediction or []).propose([*prompt, *answer], most).tokens)


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
    source = TextDrafts(PROMPT, [1, 2, 3, 4])
    assert source.propose(PROMPT, 15).tokens == [1, 2, 3, 4]
    assert source.propose([*PROMPT, 1], 15).tokens == [2, 3, 4]
    assert source.propose([*PROMPT, 1, 2, 3, 4], 15).tokens in ([], ())


def test_a_prediction_is_found_again_after_what_differs() -> None:
    prediction = list(range(1, 30))
    assert _draft(PROMPT, [1, 2, 3, 60, 61, 6, 7], prediction=prediction, most=3) == [8, 9, 10]


def test_draft_continues_where_the_last_one_came_from() -> None:
    first, second = [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9, 5, 6, 8]
    source = TextDrafts([*first, 50, *second, 60], [])
    tokens = [*first, 50, *second, 60, 3, 4]
    assert source.propose(tokens, 1).tokens == [5]
    for token, draft in ((5, 6), (6, 7)):
        tokens.append(token)
        assert source.propose(tokens, 1).tokens == [draft]
    # After the same end alone, the last place is drafted from.
    assert _draft([*first, 50, *second, 60], [5, 6], most=1) == [8]


def test_no_more_is_drafted_than_the_answer_may_have() -> None:
    for most in range(17):
        assert len(_draft(PROMPT, [1, 102, 103], most=most)) <= min(most, MAX_LENGTH)
    assert _draft(PROMPT, [1, 102, 103], most=0) == []
    assert _draft(PROMPT, [1, 102, 103], most=-1) == []


def fitted(draft: Draft, seconds: float) -> list[int]:
    """The tokens of a draft that a pass reads; each further one takes this multiple of the time of the first."""
    (length,), _ = fit_drafts([draft], [0.0, *(1 + seconds * number for number in range(16))])
    return list(draft.tokens[:length])


def _answer(source: TextDrafts, wanted: list[int], seconds: float) -> tuple[int, int]:
    """The numbers of drafted and accepted tokens of an answer; each further token of a pass takes this multiple of the
    time of the first.
    """
    tokens, drafted, accepted = list(PROMPT), 0, 0
    while wanted:
        draft = fitted(source.propose(tokens, len(wanted) - 1), seconds)
        right = next((n for n, pair in enumerate(zip(draft, wanted, strict=False)) if pair[0] != pair[1]), len(draft))
        tokens += wanted[: right + 1]
        wanted = wanted[right + 1 :]
        drafted, accepted = drafted + len(draft), accepted + right
    return drafted, accepted


def test_what_follows_a_replaced_token_is_drafted() -> None:
    source = TextDrafts(PROMPT, [])
    answer = [1, 104, 105]
    assert source.propose([*PROMPT, *answer], 2).tokens == [106, 107]
    assert source.propose([*PROMPT, *answer, 2], 2) == NO_DRAFT
    assert source.propose([*PROMPT, *answer, 2, 107], 2).tokens == [108, 109]


def test_a_text_that_repeats_its_prompt_is_nearly_all_drafted() -> None:
    wanted = PROMPT * 10
    drafted, accepted = _answer(TextDrafts(PROMPT, []), wanted, 0.2)
    assert accepted > 0.8 * len(wanted)
    assert drafted < 1.1 * accepted


def _pairs(number: int) -> list[int]:
    """Pairs of tokens that are repeated, in any order, each with another token behind it."""
    chance = random.Random(4)
    firsts = (10 * chance.randrange(50) for _ in range(number))
    return [token for first in firsts for token in (first, first + 1, chance.randrange(10**3, 10**6))]


def test_a_text_whose_drafts_are_wrong_has_fewer_and_fewer() -> None:
    wanted = _pairs(500)
    drafted, accepted = _answer(TextDrafts(PROMPT, []), wanted, 0.3)
    assert drafted < 0.02 * len(wanted)
    assert accepted <= drafted


def test_drafts_that_are_right_again_are_made_again() -> None:
    _, accepted = _answer(TextDrafts(PROMPT, []), _pairs(60) + PROMPT * 20, 0.2)
    assert accepted > 0.6 * 20 * len(PROMPT)


def test_drafts_that_no_pass_reads_are_compared_with_the_answer() -> None:
    source, tokens, shares = TextDrafts(PROMPT, []), [*PROMPT], []
    for token in [100, 101, 102, 103, 7, 100, 101, 7, 104, 105, 7]:
        tokens.append(token)
        draft = source.propose(tokens, 15)
        shares.append(draft.share if draft.tokens else 0.0)
    assert shares[1] < shares[2]  # the short match was right
    assert shares[5] == 0.0  # nothing is proposed after a token that the text has not had before this one


def test_draft_model_takes_its_time_for_each_token() -> None:
    unmade = Draft((), 0.8, max_proposed=15, num_unread=1)
    given = Draft([1] * 15, 0.8)
    steps = [1 + 0.1 * number for number in range(64)]
    (free,), _ = fit_drafts([given], steps)
    lengths = [fit_drafts([unmade], steps, [0.0, *[each] * 64])[0][0] for each in (0.0, 0.1, 0.3, 1.0)]
    assert lengths[0] == free
    assert sorted(set(lengths), reverse=True) == lengths
    assert lengths[-1] == 0
    behind = Draft((), 0.8, max_proposed=15, num_unread=16)
    assert fit_drafts([unmade, behind], steps, [0.2 * number for number in range(64)])[0][1] == 0


def test_parallel_draft_takes_one_pass_of_the_draft_model() -> None:
    chain = Draft((), 0.8, max_proposed=15, num_unread=1)
    parallel = Draft((), 0.8, max_proposed=15, num_unread=1, is_parallel=True)
    steps = [1 + 0.1 * number for number in range(64)]
    whatever_its_length = [0.0, *[0.3] * 64]
    by_token = [0.3 * number for number in range(64)]
    made, longer = [Draft([1] * 15, 0.8)], [seconds + 0.3 for seconds in steps]
    for number in (1, 2):
        lengths, _ = fit_drafts([parallel] * number, steps, whatever_its_length)
        assert lengths == fit_drafts(made * number, longer)[0]
        assert lengths[0] > fit_drafts([chain] * number, steps, whatever_its_length)[0][0]
    assert fit_drafts([parallel], steps, by_token) == fit_drafts([chain], steps, by_token)


def test_forced_tokens_are_drafted_before_repetitions() -> None:
    source = TextDrafts(PROMPT, [])
    assert source.propose([*PROMPT, 103, 104], 15, forced=[7, 8, 9]).tokens == [7, 8, 9]
    assert source.propose([*PROMPT, 103, 104], 2, forced=[7, 8, 9]).tokens == [7, 8]
    assert source.propose([*PROMPT, 103, 104], 15).tokens == PROMPT[5:20]


def test_forced_tokens_are_continued_as_in_the_text() -> None:
    source = TextDrafts(PROMPT, [])
    assert source.propose([*PROMPT, 103, 104], 4, forced=[105, 106]).tokens == [105, 106, 107, 108]
    assert source.propose([*PROMPT, 103, 104], 4, forced=[105, 106, 107, 108, 9]).tokens == [105, 106, 107, 108]
    assert source.propose([*PROMPT, 103, 104], 4, forced=[105, 9]).tokens == [105, 9]


def test_forced_tokens_that_are_rejected_are_no_longer_drafted() -> None:
    source, answer = TextDrafts(PROMPT, []), [1]
    for _ in range(20):
        drafted = fitted(source.propose([*PROMPT, *answer], 15, forced=[7, 8, 9]), 0.25)
        if not drafted:
            break
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
    return list(TextDrafts(prompt, [], memory.of("key")).propose([*prompt, *answer], most).tokens)


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
    source = TextDrafts(PROMPT, [], earlier([1, 2, 3, 4, 5, 6, 30, 31, 32, 33, 34]).of("key"))
    tokens = [*PROMPT, 1, 2, 3, 4]
    before = source.propose(tokens, 2)
    assert list(before.tokens) == [5, 6]
    own = source.propose([*tokens, 104, 105], 2)
    assert (list(own.tokens), own.share) == ([106, 107], TextDrafts(PROMPT, []).propose([*PROMPT, 104, 105], 2).share)
    later = source.propose([*tokens, 104, 105, 30, 31, 32, 33], 2)
    assert list(later.tokens) == [34]
    assert later.share < before.share  # the answer has not continued as the first draft


def test_cleared_answers_are_no_longer_drafted() -> None:
    memory = earlier(ANSWER)
    source = TextDrafts(PROMPT, [], memory.of("key"))
    assert list(source.propose([*PROMPT, *ANSWER[:10]], 2).tokens) == [11, 12]
    memory.clear()
    assert source.propose([*PROMPT, *ANSWER[:11]], 2) == NO_DRAFT
    memory.add("key", [500], [11, 12, 13, 14, 30])
    assert source.propose([*PROMPT, *ANSWER[:12]], 2) == NO_DRAFT
    assert list(source.propose([*PROMPT, *ANSWER[:14]], 2).tokens) == [30]


def test_text_that_repeats_an_earlier_answer_is_mostly_drafted() -> None:
    chance = random.Random(4)
    file = [chance.randrange(10**5) for _ in range(400)]
    edited = [10**6 + n if n % 40 == 20 else token for n, token in enumerate(file)]
    drafted, accepted = _answer(TextDrafts(PROMPT, [], earlier(file).of("key")), edited, 0.2)
    assert accepted > 0.7 * len(edited)
    assert drafted < 1.3 * accepted
    assert _answer(TextDrafts(PROMPT, []), edited, 0.2) == (0, 0)


# drafts of several sequences

LINEAR = [float(number) for number in range(100)]
FLAT = [1.0] * 100


def drafts(*shares: float) -> list[Draft]:
    return [Draft([1] * 15, share) for share in shares]


def test_budget_goes_to_the_likeliest_tokens_of_all_sequences() -> None:
    steep = [10.0] * 8 + [100.0] * 50
    assert fit_drafts(drafts(0.9, 0.1, 0.9), steep)[0] == [2, 0, 2]
    assert fit_drafts(drafts(0.7, 0.9, 0.0), steep)[0] == [1, 3, 0]


def test_draft_is_as_long_as_passes_of_all_sequences_allow() -> None:
    assert fit_drafts(drafts(0.9, 0.9), FLAT)[0] == [15, 15]
    assert sum(fit_drafts(drafts(0.9, 0.9), FLAT[:13])[0]) == 10
    assert fit_drafts(drafts(0.9, 0.9), FLAT[:3])[0] == [0, 0]


def test_no_sequence_has_a_draft_that_does_not_pay() -> None:
    assert fit_drafts(drafts(0.9, 0.9), LINEAR)[0] == [0, 0]
    assert fit_drafts([NO_DRAFT, NO_DRAFT], FLAT)[0] == [0, 0]
