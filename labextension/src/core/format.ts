// SPDX-License-Identifier: BSD-3-Clause

/** 1 GiB = 1024 MiB, or 1 GB = 1000 MB. */
export type Units = 'binary' | 'decimal';

/** Between a number and its unit: a line is not broken there. */
const SPACE = '\u00a0';

const SYSTEMS = {
  binary: { base: 1024, units: ['B', 'KiB', 'MiB', 'GiB', 'TiB'] },
  decimal: { base: 1000, units: ['B', 'kB', 'MB', 'GB', 'TB'] }
};

/** The unit in which a size reads best: how many bytes it is, and its name. */
function unitOf(bytes: number, units: Units): [number, string] {
  const { base, units: names } = SYSTEMS[units];
  let power = 0;
  // 999.5 would be rounded to 1000, which has four digits.
  while (power < names.length - 1 && bytes / base ** power >= 999.5) {
    power++;
  }
  return [base ** power, names[power] ?? ''];
}

/** Three digits at most, no zeros after the point. */
function digits(value: number): string {
  const places = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return String(Number(value.toFixed(places)));
}

/** A size: `1.5 GiB`. */
export function formatBytes(bytes: number, units: Units): string {
  const [unit, name] = unitOf(bytes, units);
  return `${digits(bytes / unit)}${SPACE}${name}`;
}

/** The two sizes of "x of y" in one unit, named once: `['130', '139 GiB']`. */
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
 * The bytes that somebody means by `20 GiB`, `20 GB`, `1.5g` or `0`.
 *
 * @returns Null if it is no size. A number alone is one of GiB or GB.
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

/** A fraction: `25 %`. */
export function formatPercent(fraction: number): string {
  return `${digits(100 * fraction)}${SPACE}%`;
}

/** A duration for people: `0.4 s`, `12 s`, `4 min`, `1 h 20 min`, `3 d`. */
export function formatDuration(seconds: number): string {
  const value = Math.max(0, seconds);
  if (value < 0.95) {
    return `${value.toFixed(1)}${SPACE}s`;
  }
  const whole = Math.round(value);
  if (whole < 60) {
    return `${whole}${SPACE}s`;
  }
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) {
    return `${minutes}${SPACE}min`;
  }
  const hours = Math.floor(minutes / 60);
  if (hours < 24) {
    return minutes % 60
      ? `${hours}${SPACE}h${SPACE}${minutes % 60}${SPACE}min`
      : `${hours}${SPACE}h`;
  }
  return `${Math.floor(hours / 24)}${SPACE}d`;
}

/** A duration with a tenth where it is short: `2.1 s`, `12 s`. */
export function formatExactly(seconds: number): string {
  return seconds < 9.95
    ? `${Math.max(0, seconds).toFixed(1)}${SPACE}s`
    : formatDuration(seconds);
}

/** Two durations, whose unit is named once where it is the same: `2–9 s`, `50 s – 2 min`. */
export function formatInterval(low: number, high: number): string {
  const [first, second] = [formatDuration(low), formatDuration(high)];
  if (first === second) {
    return second;
  }
  const [number = '', unit, ...rest] = first.split(SPACE);
  const parts = second.split(SPACE);
  // Nothing has every unit.
  const same = parts[1] === unit || Number(number) === 0;
  return rest.length === 0 && parts.length === 2 && same
    ? `${Number(number)}–${second}`
    : `${first} – ${second}`;
}
