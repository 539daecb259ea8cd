// Durations of ISO 8601, such as P1DT2H3M4.5S, in milliseconds. The service's "never" is the longest duration of .NET.

const NEVER = 'P10675199DT2H48M5.4775807S';
const PATTERN = /^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$/;

// parse returns undefined for a text that is no duration.
export function parse(text) {
  const found = PATTERN.exec(text);
  if (!found || text === 'P') return undefined;
  const [days, hours, minutes, seconds] = found.slice(1).map((part) => Number(part ?? 0));
  if (days >= 10675199) return Infinity;
  return Math.round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000);
}

export function format(milliseconds) {
  if (!(milliseconds < Infinity)) return NEVER;
  const days = Math.floor(milliseconds / 86_400_000);
  const hours = Math.floor(milliseconds / 3_600_000) % 24;
  const minutes = Math.floor(milliseconds / 60_000) % 60;
  const seconds = (milliseconds % 60_000) / 1000;
  const time = (hours ? `${hours}H` : '') + (minutes ? `${minutes}M` : '') + (seconds ? `${seconds}S` : '');
  return `P${days ? `${days}D` : ''}${time ? `T${time}` : ''}`.replace(/^P$/, 'PT0S');
}
