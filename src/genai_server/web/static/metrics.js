// The text of /metrics, and what happened between two of them.

// GENAI_METRICS_PREFIX exchanges what is before the colon.
const LINE = /^\w+:(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export class Metrics {
  // Samples by their metric: [{labels, value}].
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

  // The sum of a metric's samples whose labels fit; null if there is none.
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

// What happened between two scrapes, `seconds` apart. A counter that has restarted counts from 0.
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

  // Below this bound are so many of a histogram's new observations, as a share; null without any.
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
