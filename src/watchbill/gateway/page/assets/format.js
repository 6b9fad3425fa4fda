// Figures as people read them.

// Made once: each call of toLocaleTimeString makes a format of its own, which took most of the page's time.
const plain = new Intl.NumberFormat("en");
const toMinutes = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", hour12: false });
const toSeconds = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const toDay = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= size) return `${(value / size).toFixed(value / size < 100 ? 1 : 0)} ${unit}`;
  }
  return `${value} B`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function number(value) {
  return value === null || value === undefined ? "–" : plain.format(value);
}

export function clock(ms, seconds = true) {
  return told(seconds ? toSeconds : toMinutes, ms);
}

export function day(ms) {
  return told(toDay, ms);
}

function told(format, ms) {
  return Number.isFinite(ms) ? format.format(ms) : "–";
}

/** When something was, as short as it can be told: the time today, the day before that. */
export function moment(ms) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  const tomorrow = new Date(midnight).setHours(24);
  return ms >= midnight && ms < tomorrow ? clock(ms) : `${day(ms)} ${clock(ms, false)}`;
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

export function ordinal(place) {
  const tail = place % 100 >= 11 && place % 100 <= 13 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[place % 10] ?? "th";
  return `${number(place)}${tail}`;
}
