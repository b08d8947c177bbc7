// The text of /metrics, and what happened between two of them.

// GENAI_METRICS_PREFIX replaces the part before the colon.
const LINE = /^\w+:(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export class Metrics {
  // Samples keyed by metric: [{labels, value}].
  #samples = new Map();

  constructor(text) {
    for (const line of text.split("\n")) {
      const found = LINE.exec(line);
      if (!found) continue;
      const labels = Object.fromEntries([...(found[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, value]));
      if (!this.#samples.has(found[1])) this.#samples.set(found[1], []);
      this.#samples.get(found[1]).push({ labels, value: Number(found[3]) });
    }
  }

  // The sum of a metric's samples whose labels match; null without any.
  sum(name, labels = {}) {
    const fitting = (this.#samples.get(name) ?? []).filter((sample) =>
      Object.entries(labels).every(([label, value]) => sample.labels[label] === value));
    return fitting.length ? fitting.reduce((sum, sample) => sum + sample.value, 0) : null;
  }

  // A histogram's counts up to each bound.
  buckets(name) {
    const counts = new Map();
    for (const { labels, value } of this.#samples.get(`${name}_bucket`) ?? []) {
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      counts.set(bound, (counts.get(bound) ?? 0) + value);
    }
    return counts;
  }
}

// The difference between two scrapes, `seconds` apart. A restarted counter counts from 0.
export class Interval {
  constructor(before, now, seconds) {
    Object.assign(this, { before, now, seconds });
  }

  more(name) {
    const last = this.now.sum(name) ?? 0, first = this.before.sum(name) ?? 0;
    return last >= first ? last - first : last;
  }

  rate(name) {
    return this.more(`${name}_total`) / this.seconds;
  }

  // The mean of a histogram's new observations; null without any.
  mean(name) {
    const count = this.more(`${name}_count`);
    return count ? this.more(`${name}_sum`) / count : null;
  }

  // The share of a histogram's new observations below this bound; null without any.
  quantile(name, wanted) {
    const before = this.before.buckets(name);
    const found = [...this.now.buckets(name)].sort(([one], [other]) => one - other)
      .map(([bound, count]) => [bound, count - (before.get(bound) ?? 0)]);
    const all = found.at(-1)?.[1] ?? 0;
    if (all <= 0) return null;
    let lower = 0, below = 0;
    for (const [bound, count] of found) {
      if (count >= wanted * all) {
        return bound === Infinity ? lower : lower + (bound - lower) * (wanted * all - below) / Math.max(1, count - below);
      }
      [lower, below] = [bound, count];
    }
    return lower;
  }
}
