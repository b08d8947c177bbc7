// What the devices have done in the last minutes: the server's samples, and the points of charts.

// Seconds that charts show, and the longest pause between two samples that are compared.
export const SPAN = 300;
const LONGEST_PAUSE = 30;
const COLUMNS = ["times", "output", "prompt", "ttft", "gap", "gap95", "running", "waiting", "hits"];

export class LoadHistory {
  // Of {model, device, samples}, by both.
  #devices = new Map();
  #interval = 2;

  // The time of the newest sample, in seconds since 1970.
  get newest() {
    return Math.max(0, ...[...this.#devices.values()].map(({ samples }) => samples.at(-1)?.time ?? 0));
  }

  // Add what /metrics/history has.
  add({ interval, data }) {
    this.#interval = interval;
    for (const { model, device, replica = "", samples } of data) {
      const key = JSON.stringify([model, device, replica]);
      const known = this.#devices.get(key) ?? { model, device, samples: [] };
      known.samples.push(...samples.filter(({ time }) => time > (known.samples.at(-1)?.time ?? 0)));
      this.#devices.set(key, known);
    }
    const oldest = this.newest - SPAN;
    for (const [key, known] of this.#devices) {
      known.samples = known.samples.filter(({ time }) => time > oldest);
      if (!known.samples.length) this.#devices.delete(key);
    }
  }

  // The newest sample of a device; undefined without one.
  latest(model, device) {
    return [...this.#devices.values()].find((each) => each.model === model && each.device === device)?.samples.at(-1);
  }

  // The columns of the charts for all devices, or for those of one model.
  columns(model = "") {
    const sums = new Map();
    for (const each of this.#devices.values()) {
      if (model && each.model !== model) continue;
      each.samples.forEach((sample, place) => {
        const before = each.samples[place - 1];
        if (before && sample.time - before.time < LONGEST_PAUSE) this.#sum(sums, before, sample);
      });
    }
    const points = [...sums].sort(([one], [other]) => one - other).map(([time, sum]) => pointOf(time, sum));
    return Object.fromEntries(COLUMNS.map((name) => [name, points.map((point) => point[name])]));
  }

  // Add what happened between two samples of a device to the sums of its time.
  #sum(sums, before, now) {
    const time = Math.round(now.time / this.#interval) * this.#interval;
    const sum = sums.get(time) ?? { gaps: [], running: 0, waiting: 0 };
    sums.set(time, sum);
    const seconds = now.time - before.time;
    // A restarted engine counts from 0.
    const more = (name) => (now[name] >= before[name] ? now[name] - before[name] : now[name]);
    const add = (name, value) => { sum[name] = (sum[name] ?? 0) + value; };
    add("output", more("output_tokens") / seconds);
    add("prompt", more("prompt_tokens") / seconds);
    for (const name of ["first_tokens", "first_token_seconds", "token_gap_seconds", "cache_queries", "cache_hits"]) add(name, more(name));
    sum.running += now.running;
    sum.waiting += now.waiting;
    sum.bounds = now.gap_bounds;
    now.token_gaps.forEach((count, place) => {
      const least = before.token_gaps[place] ?? 0;
      sum.gaps[place] = (sum.gaps[place] ?? 0) + (count >= least ? count - least : count);
    });
  }
}

function pointOf(times, sum) {
  const numGaps = sum.gaps.reduce((all, count) => all + count, 0);
  const ratio = (part, whole) => (whole ? part / whole : null);
  const inMs = (seconds) => (seconds === null ? null : seconds * 1000);
  return {
    times,
    output: sum.output,
    prompt: sum.prompt,
    ttft: inMs(ratio(sum.first_token_seconds, sum.first_tokens)),
    gap: inMs(ratio(sum.token_gap_seconds, numGaps)),
    gap95: inMs(numGaps ? quantile(sum.bounds, sum.gaps, 0.95 * numGaps) : null),
    running: sum.running,
    waiting: sum.waiting,
    hits: sum.cache_queries ? 100 * sum.cache_hits / sum.cache_queries : null,
  };
}

// The value below which this number of a histogram's values lie.
function quantile(bounds, counts, wanted) {
  let below = 0;
  for (const [place, count] of counts.entries()) {
    const lower = bounds[place - 1] ?? 0;
    if (count && below + count >= wanted) {
      const upper = bounds[place] ?? lower;
      return lower + (upper - lower) * (wanted - below) / count;
    }
    below += count;
  }
  return bounds.at(-1);
}
