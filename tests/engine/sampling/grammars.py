"""Grammars for tests, and their compilation."""

from queue import SimpleQueue

from genai_server.engine.sampling.grammar import Compiled, Guidance, Guide

# It has ever more derivations the longer the answer is, and fails at about the 90th token.
AMBIGUOUS = 'start: a+ a+ a+\na: a a | "x"+'


def compiled(guidance: Guidance, grammar: str, tenant: str = "") -> Compiled:
    done: SimpleQueue[Compiled] = SimpleQueue()
    guidance.compile(grammar, done.put, tenant=tenant)
    return done.get(timeout=60)


def guide(guidance: Guidance, grammar: str, tenant: str = "") -> Guide:
    """A guide by a grammar of a tenant that is compiled if it was not."""
    if (found := guidance.guide(grammar, tenant=tenant)) is None:
        guidance.keep(grammar, compiled(guidance, grammar, tenant), tenant=tenant)
        found = guidance.guide(grammar, tenant=tenant)
    assert found is not None
    return found
