// A line chart over the last five minutes. The library is fetched when the first one is shown.
import { number } from "./figures.js";
import { html, useEffect, useRef } from "./html.js";
import { SPAN } from "./load_history.js";
import { uPlot } from "./libraries.js";

const HEIGHT = 130;

// `lines` are {name, values, colour}, with a value for each of `times`, in seconds since 1970.
export function Chart({ title, unit, times, lines, digits = 1 }) {
  const place = useRef(), chart = useRef(null);
  const data = [times, ...lines.map((line) => line.values)];
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    const element = place.current;
    let isGone = false;
    const draw = async () => {
      const Library = await uPlot.load();
      if (isGone || !Library) return;
      chart.current?.destroy();
      chart.current = new Library(settings(element.clientWidth, lines), latest.current, element);
    };
    const resized = new ResizeObserver(() => chart.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);
    draw();
    addEventListener("themechange", draw);
    return () => {
      isGone = true;
      removeEventListener("themechange", draw);
      resized.disconnect();
      chart.current?.destroy();
      chart.current = null;
    };
  }, []);
  useEffect(() => { chart.current?.setData(data); });
  const readings = lines.map((line) => `${line.name} ${number(last(line.values), digits)} ${unit}`);
  return html`<figure class="chart"><figcaption><h3>${title}</h3>
      <span class="lines">${lines.map((line, index) => html`<span key=${line.name}><i class=${line.colour} aria-hidden="true"></i>${readings[index]}</span>`)}
      </span></figcaption>
    ${lines.every((line) => last(line.values) === undefined) && html`<p class="soft nothing">nothing in the last five minutes</p>`}
    <div ref=${place} role="img" aria-label=${`${title}: ${readings.join(", ")}`}></div></figure>`;
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en", { hourCycle: "h23", hour: "2-digit", minute: "2-digit" });
const last = (values) => values.findLast((value) => value !== null);

function settings(width, lines) {
  const style = getComputedStyle(document.documentElement);
  // A canvas does not know light-dark(); an element resolves it.
  const probe = document.body.appendChild(document.createElement("i"));
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const axis = { stroke: colour("text-soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false },
    font: `11px ${style.fontFamily}` };
  const made = {
    width, height: HEIGHT, legend: { show: false }, cursor: { show: false },
    // Room for half of a time at the right end.
    padding: [8, 28, 0, 0],
    scales: { x: { range: (chart, least, most) => [most - SPAN, most] }, y: { range: (chart, least, most) => [0, most > 0 ? most * 1.15 : 1] } },
    axes: [{ ...axis, space: 48, size: 30, values: (chart, splits) => splits.map(clock) }, { ...axis, size: 48 }],
    series: [{}, ...lines.map((line) => ({ stroke: colour(line.colour), width: 2, spanGaps: true, points: { show: false } }))],
  };
  probe.remove();
  return made;
}
