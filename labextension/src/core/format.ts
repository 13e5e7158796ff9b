// SPDX-License-Identifier: BSD-3-Clause

// Sizes, fractions and exact durations read as in `scheduler/views/words/amounts.py`:
// the cases in `tests/formats.json` keep the two in step.

/** 1 GiB = 1024 MiB, or 1 GB = 1000 MB. */
export type Units = 'binary' | 'decimal';

/** The no-break space between a number and its unit. */
const SPACE = '\u00a0';

/** In seconds. */
const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const SYSTEMS = {
  binary: { base: 1024, units: ['B', 'KiB', 'MiB', 'GiB', 'TiB'] },
  decimal: { base: 1000, units: ['B', 'kB', 'MB', 'GB', 'TB'] }
};

/** The best unit for a size: its number of bytes and its name. */
function unitOf(bytes: number, units: Units): [number, string] {
  const { base, units: names } = SYSTEMS[units];
  const size = Math.abs(bytes);
  let power = 0;
  // 999.5 would be rounded to 1000, which has four digits.
  while (power < names.length - 1 && size / base ** power >= 999.5) {
    power++;
  }
  return [base ** power, names[power] ?? ''];
}

/** Format a number with at most three digits, without trailing zeros. */
function digits(value: number): string {
  const size = Math.abs(value);
  const scale = size < 9.995 ? 100 : size < 99.95 ? 10 : 1;
  // `toFixed` rounds the binary value, which would differ from Python's result.
  return String(Math.floor(value * scale + 0.5) / scale);
}

/** A size: `1.5 GiB`. */
export function formatBytes(bytes: number, units: Units): string {
  const [unit, name] = unitOf(bytes, units);
  return `${digits(bytes / unit)}${SPACE}${name}`;
}

/** Format the two sizes of "x of y", with the unit only once: `['130', '139 GiB']`. */
export function formatPart(
  part: number,
  whole: number,
  units: Units
): [string, string] {
  const [unit] = unitOf(whole, units);
  return [
    digits(part / unit).replace(/^0$/, part > 0 ? '< 0.01' : '0'),
    formatBytes(whole, units)
  ];
}

/**
 * Parse a size such as `20 GiB`, `20 GB`, `1.5g` or `0`.
 *
 * @returns The bytes, or null if the text is not a size. A number without a unit means GiB or GB.
 */
export function parseBytes(text: string, units: Units): number | null {
  const match = /^\s*(\d+(?:[.,]\d+)?)\s*(?:([kmgt])?(i)?b?)\s*$/i.exec(text);
  if (!match) {
    return null;
  }
  const [, number = '', letter, binary] = match;
  const power = letter ? 'kmgt'.indexOf(letter.toLowerCase()) + 1 : 3;
  const base =
    binary || (units === 'binary' && !/b\s*$/i.test(text)) ? 1024 : 1000;
  return Math.round(Number(number.replace(',', '.')) * base ** power);
}

/** A fraction: `25%`. */
export function formatPercent(fraction: number): string {
  return `${digits(100 * fraction)}%`;
}

/**
 * Format a duration that changes while users look: `0.4 s`, `12 s`, `4 min`, `1 h 20 min`, `3 d`.
 *
 * @param round - How to round to whole minutes. Time that has passed is rounded down.
 */
export function formatDuration(
  seconds: number,
  round: (minutes: number) => number = Math.floor
): string {
  const value = Math.max(0, seconds);
  if (value < 0.95) {
    return `${value.toFixed(1)}${SPACE}s`;
  }
  const whole = Math.round(value);
  if (whole < MINUTE) {
    return `${whole}${SPACE}s`;
  }
  if (whole >= DAY) {
    return `${Math.floor(whole / DAY)}${SPACE}d`;
  }
  const minutes = round(whole / MINUTE);
  return minutes < 60
    ? `${minutes}${SPACE}min`
    : formatTwo(minutes, 60, 'h', 'min');
}

/** Format the longest time that something can still take: "within 2 min" must not mean 2 min 59 s. */
export function formatBound(seconds: number): string {
  return formatDuration(seconds, Math.ceil);
}

/** Format an estimate of the time that something still takes: 1 min 55 s is about 2 min. */
export function formatEstimate(seconds: number): string {
  return formatDuration(seconds, Math.round);
}

/** Format a duration with two units: `2.1 s`, `12 s`, `3 min 5 s`, `2 h 10 min`, `1 d 6 h`. */
export function formatExactly(seconds: number): string {
  const tenths = Math.floor(10 * Math.max(0, seconds) + 0.5);
  if (tenths < 100) {
    return `${(tenths / 10).toFixed(1)}${SPACE}s`;
  }
  const whole = Math.floor(seconds + 0.5);
  if (whole < MINUTE) {
    return `${whole}${SPACE}s`;
  }
  if (whole < HOUR) {
    return formatTwo(whole, 60, 'min', 's');
  }
  // Rounded down: 59 minutes and 59 seconds are not an hour.
  return whole < DAY
    ? formatTwo(Math.floor(whole / MINUTE), 60, 'h', 'min')
    : formatTwo(Math.floor(whole / HOUR), 24, 'd', 'h');
}

/** Format a number of small units as large units and a rest. */
function formatTwo(
  count: number,
  sizeOfLarger: number,
  larger: string,
  smaller: string
): string {
  const rest = count % sizeOfLarger;
  const whole = `${Math.floor(count / sizeOfLarger)}${SPACE}${larger}`;
  return rest ? `${whole}${SPACE}${rest}${SPACE}${smaller}` : whole;
}
