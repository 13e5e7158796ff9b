// SPDX-License-Identifier: BSD-3-Clause

/** Between a number and its unit: a line is not broken there. */
const SPACE = '\u00a0';

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

/** The unit in which a size reads best. */
function unitOf(bytes: number): number {
  let unit = 0;
  // 999.5 would be rounded to 1000, which has four digits.
  while (unit < UNITS.length - 1 && bytes / 1024 ** unit >= 999.5) {
    unit++;
  }
  return unit;
}

/** Three digits at most, no zeros after the point. */
function digits(value: number): string {
  const places = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return String(Number(value.toFixed(places)));
}

/** A size: `1.5 GiB`. */
export function formatBytes(bytes: number): string {
  const unit = unitOf(bytes);
  return `${digits(bytes / 1024 ** unit)}${SPACE}${UNITS[unit]}`;
}

/** The two sizes of "x of y" in one unit, named once: `['130', '139 GiB']`. */
export function formatPart(part: number, whole: number): [string, string] {
  return [
    digits(part / 1024 ** unitOf(whole)).replace(
      /^0$/,
      part > 0 ? '< 0.01' : '0'
    ),
    formatBytes(whole)
  ];
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
