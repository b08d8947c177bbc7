// Formatting of numbers: short, and "–" for unknown ones.

const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);

export function number(value, digits = 1) {
  if (!isKnown(value)) return "–";
  return value >= 1000 ? Math.round(value).toLocaleString("en") : value.toFixed(value >= 100 ? 0 : digits);
}

export function whole(value) {
  return isKnown(value) ? Math.round(value).toLocaleString("en") : "–";
}

export function share(value) {
  return isKnown(value) ? `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %` : "–";
}

// A time given in milliseconds.
export function time(milliseconds) {
  if (!isKnown(milliseconds)) return "–";
  if (milliseconds < 10) return `${milliseconds.toFixed(1)} ms`;
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  return milliseconds < 60_000 ? `${(milliseconds / 1000).toFixed(1)} s` : `${Math.round(milliseconds / 60_000)} min`;
}

// When something was, as a heading of a list: "Today", or a month.
export function period(milliseconds, now = Date.now()) {
  const midnight = (time) => new Date(time).setHours(0, 0, 0, 0);
  const days = Math.round((midnight(now) - midnight(milliseconds)) / 86_400_000);
  if (days <= 1) return days < 1 ? "Today" : "Yesterday";
  if (days <= 7) return "Previous 7 days";
  return new Date(milliseconds).toLocaleDateString("en", { month: "long", year: "numeric" });
}

export function bytes(value) {
  if (!isKnown(value)) return "–";
  const units = ["B", "KB", "MB", "GB"];
  const power = Math.min(units.length - 1, value < 1 ? 0 : Math.floor(Math.log(value) / Math.log(1024)));
  return `${(value / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

export function median(values) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}
