// SPDX-License-Identifier: BSD-3-Clause
import {
  formatBound,
  formatBytes,
  formatDuration,
  formatEstimate,
  formatExactly,
  formatPart,
  formatPercent,
  parseBytes
} from '../format';
import { GiB, plain } from '../../__tests__/fixtures';

type Cases = [amount: number, text: string][];

// The formatters of the command line have the same cases. They are outside of the npm package.
const FORMATS = jest.requireActual<
  Record<'sizes' | 'fractions' | 'durations', Cases>
>('../../../../tests/formats.json');

describe('amounts', () => {
  it.each(FORMATS.sizes)('words %d bytes as %s', (bytes, text) => {
    expect(plain(formatBytes(bytes, 'binary'))).toBe(text);
  });

  it.each(FORMATS.fractions)('words %d as %s', (fraction, text) => {
    expect(plain(formatPercent(fraction))).toBe(text);
  });

  it.each(FORMATS.durations)('words %d s as %s', (seconds, text) => {
    expect(plain(formatExactly(seconds))).toBe(text);
  });
});

describe('formatBytes', () => {
  it.each([
    [0, '0 B', '0 B'],
    [900, '900 B', '900 B'],
    [1023, '1 KiB', '1.02 kB'],
    [1536 * 1024, '1.5 MiB', '1.57 MB'],
    [1023.9 * 1024 ** 2, '1 GiB', '1.07 GB'],
    [12.34 * GiB, '12.3 GiB', '13.2 GB'],
    [139 * GiB, '139 GiB', '149 GB']
  ])('words %d as %s or %s', (bytes, binary, decimal) => {
    expect(plain(formatBytes(bytes, 'binary'))).toBe(binary);
    expect(plain(formatBytes(bytes, 'decimal'))).toBe(decimal);
  });

  it('uses the unit of the whole for a part', () => {
    const part = (bytes: number): string[] =>
      formatPart(bytes, 8 * GiB, 'binary').map(plain);
    expect(part(512 * 1024 ** 2)).toEqual(['0.5', '8 GiB']);
    expect(part(0)).toEqual(['0', '8 GiB']);
    expect(part(1000)).toEqual(['< 0.01', '8 GiB']);
  });
});

describe('parseBytes', () => {
  it.each([
    ['20 GiB', 20 * GiB],
    ['20GiB', 20 * GiB],
    ['20', 20 * GiB],
    ['20g', 20 * GiB],
    ['20 GB', 20e9],
    ['1.5 MiB', 1.5 * 1024 ** 2],
    ['1,5 MiB', 1.5 * 1024 ** 2],
    ['0', 0]
  ])('reads %s', (text, bytes) => {
    expect(parseBytes(text, 'binary')).toBe(bytes);
  });

  it('uses the chosen unit for a number without one', () => {
    expect(parseBytes('20', 'decimal')).toBe(20e9);
    expect(parseBytes('20 GiB', 'decimal')).toBe(20 * GiB);
  });

  it('parses its own output', () => {
    for (const units of ['binary', 'decimal'] as const) {
      expect(parseBytes(formatBytes(24e9, units), units)).toBeCloseTo(24e9, -9);
    }
  });

  it.each(['', 'much', '-1 GiB', '20 QiB', '1 2 GiB', 'NaN'])(
    'rejects "%s"',
    text => {
      expect(parseBytes(text, 'binary')).toBeNull();
    }
  );
});

describe('formatDuration', () => {
  it.each([
    [-1, '0.0 s'],
    [0.42, '0.4 s'],
    [0.97, '1 s'],
    [59.4, '59 s'],
    [59.6, '1 min'],
    [3599, '59 min'],
    [3600, '1 h'],
    [4800, '1 h 20 min'],
    [200000, '2 d']
  ])('words %d as %s', (seconds, expected) => {
    expect(plain(formatDuration(seconds))).toBe(expected);
  });
});

describe('formatBound and formatEstimate', () => {
  it.each([
    [12, '12 s', '12 s'],
    [60, '1 min', '1 min'],
    [61, '2 min', '1 min'],
    [115, '2 min', '2 min'],
    [3541, '1 h', '59 min'],
    [3600, '1 h', '1 h'],
    [3661, '1 h 2 min', '1 h 1 min']
  ])('format %d s', (seconds, bound, estimate) => {
    expect(plain(formatBound(seconds))).toBe(bound);
    expect(plain(formatEstimate(seconds))).toBe(estimate);
  });
});
