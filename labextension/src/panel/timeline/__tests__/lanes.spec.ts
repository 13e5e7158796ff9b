// SPDX-License-Identifier: BSD-3-Clause
import { makeSpan, makeTimeline } from '../../../__tests__/fixtures';
import { shortName } from '../../../words/mentions';
import { makeLanes, makeMarks, markAt, utilisationPath } from '../lanes';

const nameOf = (_: string, name: string): string => shortName(name);

describe('makeLanes', () => {
  it('starts with the most recently active group, and leaves out old events', () => {
    const lanes = makeLanes(
      makeTimeline(
        makeSpan(1, 'gone', { start: 1, end: 9 }),
        makeSpan(2, 'early', { start: 5, end: 20 }),
        makeSpan(3, 'b', { start: 30, end: null }),
        makeSpan(4, 'late', { start: 30, end: 40 }),
        makeSpan(5, 'a', { start: 50, end: null }),
        makeSpan(6, 'early', { start: 22, end: 25 })
      ),
      10,
      nameOf
    );
    expect(lanes.map(({ name }) => name)).toEqual([
      'a.ipynb',
      'b.ipynb',
      'late.ipynb',
      'early.ipynb'
    ]);
    expect(lanes[3]?.spans.map(({ id }) => id)).toEqual([2, 6]);
  });
});

describe('hibernation', () => {
  it('is in the lane of a group with other events, and has no lane of its own', () => {
    const lanes = makeLanes(
      makeTimeline(
        makeSpan(1, 'sleeps', { kind: 'hibernated', start: 10, end: null }),
        makeSpan(2, 'slept', { kind: 'hibernated', start: 10, end: 50 }),
        makeSpan(3, 'slept', { start: 51, end: 52 }),
        makeSpan(4, 'runs', { start: 60, end: 61 })
      ),
      10,
      nameOf
    );
    expect(lanes.map(({ group }) => group)).toEqual(['runs', 'slept']);
    expect(lanes[1]?.spans.map(({ id }) => id)).toEqual([3, 2]);
  });
});

describe('makeMarks', () => {
  it('draws a span at its time, and an unfinished one up to now', () => {
    const marks = makeMarks(
      [
        makeSpan(1, 'a', { start: 20, end: 40 }),
        makeSpan(2, 'a', { start: 90, end: null })
      ],
      100,
      100,
      200
    );
    expect(marks.map(({ from, to }) => [from, to])).toEqual([
      [40, 80],
      [180, 200]
    ]);
    expect(marks[1]?.end).toBeNull();
  });

  it('cuts spans that began before the picture, and shows those shorter than a pixel', () => {
    const marks = makeMarks(
      [
        makeSpan(1, 'a', { start: -50, end: 10 }),
        makeSpan(2, 'a', { start: 50, end: 50.01, kind: 'in', bytes: 5 }),
        makeSpan(3, 'a', { start: 99.99, end: null, kind: 'wait' })
      ],
      100,
      100,
      200
    );
    expect(marks[0]).toMatchObject({ from: 0, to: 20, seconds: 60 });
    expect(marks[1]).toMatchObject({ from: 100, to: 103, bytes: 5 });
    expect(marks[2]).toMatchObject({ from: 199, to: 200 });
  });

  it('merges marks that are too close to tell apart, but not of different kinds', () => {
    const spans = Array.from({ length: 50 }, (_, index) =>
      makeSpan(index, 'a', { start: 10 + index / 10, end: 10.05 + index / 10 })
    );
    const wait = makeSpan(60, 'a', { kind: 'wait', start: 11, end: 12 });
    const marks = makeMarks([...spans, wait], 100, 100, 200);
    expect(marks).toHaveLength(2);
    const [bursts, waits] = marks;
    expect(bursts).toMatchObject({ kind: 'burst', count: 50, start: 10 });
    expect(bursts?.seconds).toBeCloseTo(2.5);
    expect(waits).toMatchObject({ kind: 'wait', count: 1 });
  });

  it('finds the smallest mark near a place', () => {
    const marks = makeMarks(
      [
        makeSpan(1, 'a', { start: 0, end: 50 }),
        makeSpan(2, 'a', { start: 20, end: 22, kind: 'in' })
      ],
      100,
      100,
      200
    );
    expect(markAt(marks, 41)?.kind).toBe('in');
    expect(markAt(marks, 10)?.kind).toBe('burst');
    expect(markAt(marks, 150)).toBeNull();
  });
});

describe('utilisationPath', () => {
  it('keeps a value until the next, including the last one before the picture', () => {
    const path = utilisationPath(
      [
        [10, 'GPU-0', 100],
        [40, 'GPU-0', 50],
        [60, 'GPU-1', 7],
        [75, 'GPU-0', 0]
      ],
      'GPU-0',
      100,
      50,
      100,
      10
    );
    expect(path).toBe('M0.0 5.0H50.0V10.0H100');
  });

  it('is empty for a GPU without samples', () => {
    expect(utilisationPath([[1, 'GPU-1', 7]], 'GPU-0', 9, 9, 9, 9)).toBe('');
  });
});
