// Inspects an answer: its tokens by probability or by time, and the alternatives of one.
import { useChanges } from "./emitter.js";
import { median, number, share, time } from "./figures.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { server } from "./server.js";

// A gap is slow if it exceeds this multiple of the median and this number of milliseconds.
const SLOW_RATIO = 3;
const SLOW_LEAST = 20;

const LEGENDS = {
  probability: [["", "over 90 %"], ["p4", "over 60 %"], ["p3", "over 30 %"], ["p2", "over 10 %"], ["p1", "less"]],
  time: [["", "usual"], ["late", "over 1.5 times"], ["slow", `over ${SLOW_RATIO} times the usual gap`]],
};

// Milliseconds within which pieces arrive that one step of the model has made, as speculative decoding does.
const SAME_STEP = 2;

// The tokens of a turn, each with the gap before it in milliseconds. Without log probabilities a piece counts as one. Tokens
// of one step have the gap of its first one, and the usual gap is that between steps.
export function tokensOf(turn) {
  const sinceLast = turn.pieces.map(({ at }, place) => (place ? at - turn.pieces[place - 1].at : null));
  const gaps = sinceLast.map((gap) => (gap !== null && gap < SAME_STEP ? null : gap));
  const usual = median(gaps.filter((gap) => gap !== null)) ?? median(sinceLast.slice(1));
  return turn.pieces.flatMap((piece, place) => {
    const gap = gaps[place];
    const isSlow = gap !== null && gap >= SLOW_LEAST && gap > SLOW_RATIO * usual;
    const timed = { gap, ratio: usual && gap !== null ? gap / usual : null, isSlow };
    const tokens = piece.tokens ?? [{ token: piece.text, logprob: null, top: [] }];
    // Tokens that came together have one gap, the first one's.
    return tokens.map((token, inner) => ({ ...token, ...(inner ? { gap: null, ratio: null, isSlow: false } : timed) }));
  });
}

export function TokenPanel({ turn, onProfile, onAskAgain }) {
  const tokens = useMemo(() => tokensOf(turn), [turn.pieces.length, turn.id]);
  useChanges(server);
  useEffect(() => { if (server.isAdmin === null) server.findRights(); }, []);
  const hasScores = tokens.some((token) => token.logprob !== null);
  const [mode, setMode] = useState(hasScores ? "probability" : "time");
  const [chosen, setChosen] = useState(Math.max(0, tokens.findIndex((token) => token.isSlow)));
  const slow = tokens.filter((token) => token.isSlow).length;
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = chosen + step;
    if (!step || !tokens[next]) return;
    event.preventDefault();
    setChosen(next);
    event.currentTarget.children[next].focus();
  };
  return html`<div class="panel-body look">
    <fieldset class="modes"><legend>Colour tokens by</legend>
      ${["probability", "time"].map((name) => html`<label key=${name}><input type="radio" name="mode" checked=${mode === name}
        onChange=${() => setMode(name)} /> ${name}</label>`)}</fieldset>
    ${mode === "probability" && !hasScores && html`<p class="soft">This answer was asked for without token probabilities.
      <button type="button" class="quiet" onClick=${onAskAgain}>Ask again with them</button></p>`}
    ${mode === "time" && html`<p class="soft">${slow ? `${slow} slow token${slow > 1 ? "s" : ""}` : "No slow token"}:
      more than ${SLOW_RATIO} times the usual gap between steps, as this browser saw it.</p>`}
    <p class="legend">${LEGENDS[mode].map(([kind, words]) => html`<span key=${kind} class=${kind}>${words}</span>`)}</p>
    <div class="tokens" onKeyDown=${move}>${tokens.map((token, place) => html`<button type="button" key=${place}
      aria-label=${token.token.trim() ? undefined : "white space"} tabindex=${place === chosen ? 0 : -1} aria-pressed=${place === chosen} class=${colour(token, mode)}
      onClick=${() => setChosen(place)}>${shown(token.token)}</button>`)}</div>
    ${tokens[chosen] && html`<${Token} token=${tokens[chosen]} place=${chosen} onProfile=${onProfile} />`}
  </div>`;
}

function Token({ token, place, onProfile }) {
  return html`<section class="token" aria-live="polite"><h3>Token ${place + 1}: <code>${JSON.stringify(token.token)}</code></h3>
    <p>${token.gap === null ? place ? "It arrived together with the one before." : "The first token." : html`It came ${time(token.gap)} after the
      one before${token.ratio === null ? "" : `, ${number(token.ratio)} times the usual gap`}.`}</p>
    ${token.isSlow && server.isAdmin && html`<p><button type="button" class="primary" onClick=${() => onProfile(token)}>
      Profile the next slow token</button></p>`}
    ${token.top.length > 0 && html`<table><caption>Most likely tokens here</caption>
      <thead><tr><th>token</th><th class="figure">probability</th></tr></thead>
      <tbody>${token.top.map((other) => html`<tr key=${other.token} class=${other.token === token.token ? "chosen" : ""}>
        <td><code>${JSON.stringify(other.token)}</code></td><td class="figure">${share(Math.exp(other.logprob))}
        <meter min="0" max="1" value=${Math.exp(other.logprob)} aria-hidden="true"></meter></td></tr>`)}</tbody></table>`}
  </section>`;
}

function colour(token, mode) {
  if (mode === "time") {
    if (token.isSlow) return "slow";
    return token.ratio > 1.5 ? "late" : "";
  }
  if (token.logprob === null) return "";
  const chance = Math.exp(token.logprob);
  return chance > 0.9 ? "p5" : chance > 0.6 ? "p4" : chance > 0.3 ? "p3" : chance > 0.1 ? "p2" : "p1";
}

// A line end is seen, and still ends the line.
function shown(text) {
  return text.replaceAll("\n", "↵\n") || "∅";
}
