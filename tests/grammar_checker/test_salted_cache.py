"""The cache whose entries are found by those who made them only."""

from genai_server.grammar_checker.salted_cache import SaltedCache


def test_entries_are_found_with_their_salt_only() -> None:
    cache = SaltedCache[int](10)
    cache.put("a", "key", 1)
    cache.put(None, "key", 2)
    assert (cache.get("a", "key"), cache.get(None, "key"), cache.get("b", "key")) == (1, 2, None)


def test_the_least_recently_used_entry_is_dropped() -> None:
    cache = SaltedCache[int](2)
    cache.put(None, "one", 1)
    cache.put(None, "two", 2)
    assert cache.get(None, "one") == 1
    cache.put(None, "three", 3)
    assert [cache.get(None, key) for key in ("one", "two", "three")] == [1, None, 3]
    cache.put(None, "one", 4)
    assert (cache.get(None, "one"), len(cache)) == (4, 2)


def test_nobody_pushes_out_what_others_use() -> None:
    cache = SaltedCache[int](10)
    cache.put("b", "own", 0)
    for number in range(100):
        cache.put("a", number, number)
    assert cache.get("b", "own") == 0
    assert len(cache) == 10
